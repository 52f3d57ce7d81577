// Writes job states as the data directories of servers.

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/config/config.h"
#include "base/executor.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/job/optimizers.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "checkpoint/job_state.h"
#include "storage/backends/durable_storage.h"
#include "storage/cuts/extents/extents.h"
#include "storage/cuts/residual_budget.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMaxServers = 4096;  // as CreateJob allows
constexpr size_t kAhead = 4;            // chunks on their way to the disk
constexpr int kThreads = 2;

// The share of one server, and the size of its files.
struct Shard {
  std::vector<ChunkId> owned;
  uint64_t residual_bytes = 0;
  uint64_t bytes = 0;          // both slots
  uint64_t staging_bytes = 0;  // for kAhead chunks
};

Shard ShardOf(const JobState& state, ShardId id, uint32_t servers) {
  const JobSpec& spec = state.head().spec;
  Shard shard;
  shard.owned = state.ChunksOf(id, servers);
  shard.residual_bytes = ResidualBudget(spec, state.chunks(), shard.owned, /*durable=*/true);
  const ExtentLayout layout(state.chunks(), shard.owned, 1 + StateFields(spec.optimizer).size(),
                            shard.residual_bytes, spec.training.parts);
  shard.bytes = 2 * layout.slot_bytes();
  shard.staging_bytes = kAhead * layout.largest_area_bytes();
  return shard;
}

// Waits for a backend's operations one by one. Must outlive the backend.
class Outcomes {
 public:
  explicit Outcomes(std::string folder) : folder_(std::move(folder)) {}

  BackendDoneFn Sink() {
    return [this](BackendDone done) {
      MutexLock lock(&mu_);
      done_[done.op] = std::move(done.status);
      arrived_.NotifyAll();
    };
  }
  OpId Next() { return next_ = next_.Next(); }
  // DeadlineExceeded if the disk does not store a chunk within minutes.
  absl::Status Take(OpId op) EPS_EXCLUDES(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
    MutexLock lock(&mu_);
    for (;;) {
      const auto it = done_.find(op);
      if (it != done_.end()) {
        absl::Status status = std::move(it->second);
        done_.erase(it);
        return status;
      }
      if (!arrived_.WaitUntil(&mu_, deadline)) {
        return absl::DeadlineExceededError(
            absl::StrCat(folder_, ": the disk has not completed an operation for 10 minutes"));
      }
    }
  }

 private:
  const std::string folder_;
  OpId next_;
  Mutex mu_;
  CondVar arrived_;
  std::map<OpId, absl::Status> done_ EPS_GUARDED_BY(mu_);
};

absl::Status WriteChunks(const JobState& state, const std::vector<ChunkId>& owned,
                         StateBackend* backend, Outcomes* outcomes) {
  std::deque<OpId> begun;
  for (const ChunkId chunk : owned) {
    if (begun.size() == kAhead) {
      EPS_RETURN_IF_ERROR(outcomes->Take(begun.front()));
      begun.pop_front();
    }
    EPS_ASSIGN_OR_RETURN(const ChunkState content, state.ReadChunk(chunk));
    begun.push_back(outcomes->Next());
    backend->Submit(begun.back(),
                    WriteStateRequest{chunk, state.head().border.version, Bytes::CopyOf(content)});
  }
  for (const OpId op : begun) EPS_RETURN_IF_ERROR(outcomes->Take(op));
  return absl::OkStatus();
}

absl::Status WriteServer(const JobState& state, ShardId id, uint32_t servers,
                         const std::string& folder) {
  const JobStateHead& head = state.head();
  const Shard shard = ShardOf(state, id, servers);
  StorageOptions options;
  options.gradients_on_disk = false;  // there are none
  options.kind = "nvme";  // of this writing alone: its files are those of dram, without the memory
  options.path = folder;
  options.staging_bytes = shard.staging_bytes;
  ShardPlace place;
  place.shard = id;
  place.shards = servers;
  place.residual_bytes = shard.residual_bytes;
  MemoryAccount account;
  ThreadPool pool(kThreads);
  Outcomes outcomes(folder);
  EPS_ASSIGN_OR_RETURN(const auto storage, DurableStorage::Open(options));
  EPS_ASSIGN_OR_RETURN(const auto backend,
                       storage->NewBackend(head.spec, state.chunks(), shard.owned, place, &pool,
                                           &account, outcomes.Sink()));
  // Terms continue, although no process of the earlier servers can reach these.
  const OpId promise = outcomes.Next();
  backend->Submit(promise, PromiseRequest{std::max(head.promised, head.border.id.term)});
  EPS_RETURN_IF_ERROR(outcomes.Take(promise));
  EPS_RETURN_IF_ERROR(WriteChunks(state, shard.owned, backend.get(), &outcomes));
  CutRequest request;
  request.border = head.border;
  // Marks the job as begun: if the cut of one server is lost, the job must not start from scratch.
  request.border.opened = true;
  EPS_ASSIGN_OR_RETURN(request.content.residuals, state.ReadResiduals(shard.owned));
  if (id.value() == 0) request.content.records = head.records;
  const OpId cut = outcomes.Next();
  backend->Submit(cut, std::move(request));
  return outcomes.Take(cut);
}

// Returns the configuration changed for these servers; empty if it is unknown.
absl::StatusOr<std::string> ConfigFor(const JobState& state, uint32_t servers,
                                      const std::string& out) {
  if (state.head().config.empty()) return std::string();
  Config config;
  EPS_RETURN_IF_ERROR(config.MergeYaml(state.head().config, "the job's configuration"));
  EPS_RETURN_IF_ERROR(config.Set("servers.addresses", absl::StrCat(servers)));
  config.storage.path = out;
  config.storage.drives.clear();
  if (config.storage.kind == "auto") config.storage.kind = "dram";
  if (config.storage.kind == "csd") config.storage.kind = "nvme";  // the files are in no device
  return config.ToYaml();
}

absl::Status WriteAll(const JobState& state, uint32_t servers, const OutPath& out) {
  for (uint32_t server = 0; server < servers; ++server) {
    const std::string folder = absl::StrCat(out.hidden, "/server-", server);
    EPS_RETURN_IF_ERROR(WriteServer(state, ShardId(server), servers, folder));
    EPS_RETURN_IF_ERROR(SyncPath(folder));
  }
  EPS_ASSIGN_OR_RETURN(const std::string config, ConfigFor(state, servers, out.path));
  if (!config.empty()) {
    EPS_RETURN_IF_ERROR(WriteSynced(JobConfigFile(out.hidden, state.head().spec.id()), config));
  }
  EPS_RETURN_IF_ERROR(SyncPath(out.hidden));
  EPS_RETURN_IF_ERROR(RenamePath(out.hidden, out.path));
  return SyncPath(out.above);
}

}  // namespace

absl::Status CheckIsNew(const std::string& out) {
  std::error_code error;
  if (fs::symlink_status(LocateOut(out).path, error).type() == fs::file_type::not_found) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(out, " is there already: --out has to be new"));
}

absl::StatusOr<StatePlan> PlanStateFolder(const JobState& state, uint32_t servers,
                                          const std::string& out) {
  EPS_RETURN_IF_ERROR(CheckIsNew(out));
  const OutPath folder = LocateOut(out);
  std::error_code error;
  if (servers == 0 || servers > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("--servers: expected 1 to ", kMaxServers, ", found ", servers));
  }
  StatePlan plan;
  for (uint32_t server = 0; server < servers; ++server) {
    const Shard shard = ShardOf(state, ShardId(server), servers);
    if (shard.owned.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--servers: ", servers, " servers for ", state.chunks().chunks().size(),
                       " chunks: server ", server, " would hold nothing"));
    }
    plan.servers.push_back(
        {absl::StrCat(out, "/server-", server), shard.owned.size(), shard.bytes});
    plan.bytes += shard.bytes;
  }
  fs::path there = folder.above;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const fs::space_info space = fs::space(there, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(there.string(), ": ", error.message()));
  }
  plan.free_bytes = space.available;
  return plan;
}

absl::Status CheckFits(const StatePlan& plan, const std::string& out) {
  if (plan.bytes <= plan.free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(out, ": ", plan.bytes, " bytes are to be written, and ", plan.free_bytes,
                   " are free: ", plan.bytes - plan.free_bytes, " are missing"));
}

absl::Status WriteStateFolder(const JobState& state, uint32_t servers, const std::string& out) {
  EPS_ASSIGN_OR_RETURN(const StatePlan plan, PlanStateFolder(state, servers, out));
  EPS_RETURN_IF_ERROR(CheckFits(plan, out));
  const OutPath folder = LocateOut(out);
  std::error_code error;
  fs::remove_all(folder.hidden, error);  // what a crash left
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot remove ", folder.hidden, ": ", error.message()));
  }
  const absl::Status status = WriteAll(state, servers, folder);
  if (!status.ok()) fs::remove_all(folder.hidden, error);
  return status;
}

}  // namespace eps
