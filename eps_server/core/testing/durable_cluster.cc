#include "eps_server/core/testing/durable_cluster.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/status_macros.h"
#include "eps_server/core/shard_core.h"
#include "storage/backends/durable_backend.h"
#include "storage/cuts/residual_budget.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"

namespace eps {
namespace {

constexpr char kCatalogue[] = "/state/catalogue";
constexpr char kExtents[] = "/state/job";
constexpr uint64_t kNever = uint64_t{1} << 60;

struct FreeBytes {
  void operator()(void* memory) const { std::free(memory); }
};

// Writes a file to a disk. Call before faults and cuts are planned.
void Put(Disk* disk, const std::string& path, const std::string& content) {
  EPS_CHECK(disk->CreateFolder(path.substr(0, path.rfind('/'))).ok());
  EPS_CHECK(disk->CreateFile(path, content.size()).ok());
  if (content.empty()) return;
  const std::unique_ptr<void, FreeBytes> memory(std::aligned_alloc(kDiskBlock, content.size()));
  std::memcpy(memory.get(), content.data(), content.size());
  auto file = disk->Open(path);
  EPS_CHECK_MSG(file.ok(), file.status().ToString());
  EPS_CHECK(
      WriteBlocking(file->get(), 0,
                    absl::MakeConstSpan(static_cast<const uint8_t*>(memory.get()), content.size()))
          .ok());
  EPS_CHECK(SyncBlocking(file->get()).ok());
}

}  // namespace

JobSpec SmallDurableSpec(Clip clip, Mode mode, const std::string& gradients) {
  JobSpec spec;
  spec.name = "durable";
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = 3;
  spec.model.synthetic.n_embd = 16;
  spec.model.synthetic.tied = true;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  spec.chunk_elements = 256;
  spec.training.steps = 5;
  spec.training.parts = 2;
  spec.training.clip = clip;
  spec.training.mode = mode;
  spec.training.max_grad_norm = 0.25;
  spec.codecs.gradients = gradients;
  spec.data.tokens = 100'000;
  spec.data.sha256 = std::string(64, '0');
  const absl::Status valid = spec.Validate();
  EPS_CHECK_MSG(valid.ok(), valid.ToString());
  return spec;
}

CoreTraining::Outcome UndisturbedOutcome(const JobSpec& spec) {
  CoreTraining training(spec, CoreCluster::Options(), /*fetches=*/true);
  const absl::Status finished = training.Finish([] {});
  EPS_CHECK_MSG(finished.ok(), finished.ToString());
  return training.End();
}

DurableDisks::DurableDisks(const Options& options)
    : options_(options),
      draws_(options.seed),
      monitor_(options.shards, !options.log_steps.empty()) {
  for (uint32_t s = 0; s < options_.shards; ++s) {
    places_.push_back(std::make_unique<Place>());
    Place* const place = places_.back().get();
    SimulatedDisk::Options disk;
    disk.executor = &place->relay;
    disk.seed = options_.seed == 0 ? 0 : options_.seed + s;
    disk.end_dead_operations = true;
    if (options_.watch != nullptr) {
      disk.watch = [this, s](const SimulatedDisk::Site& site) { options_.watch(ShardId(s), site); };
    }
    place->disk = std::make_unique<SimulatedDisk>(disk);
    if (!options_.images.empty()) {
      for (const auto& [path, content] : options_.images[s]) {
        Put(place->disk->blocking(), path, content);
        if (!absl::EndsWith(path, log_format::kFileName)) continue;
        // The header of a contribution log holds the number of its file.
        const auto* const header = reinterpret_cast<const uint8_t*>(content.data());
        place->disk->SetFileNumber(path,
                                   LoadFrom<uint64_t>(header + log_format::header::kFileNumberAt));
      }
    }
    if (options_.prepare != nullptr) options_.prepare(ShardId(s), place->disk.get());
  }
}

DurableDisks::~DurableDisks() = default;

CoreCluster::Options DurableDisks::ForCluster() {
  CoreCluster::Options cluster;
  cluster.shards = options_.shards;
  cluster.seed = options_.seed;
  cluster.limits.cut_steps = options_.cut_steps;
  cluster.limits.cut_ms = options_.cut_ms;
  cluster.limits.scrub_bytes_per_second = options_.scrub_bytes_per_second;
  cluster.new_backend = [this](const JobSpec& spec, const ChunkMap& chunks,
                               std::vector<ChunkId> owned, ShardId shard, Executor* executor,
                               MemoryAccount* account,
                               BackendDoneFn done) -> std::unique_ptr<StateBackend> {
    const auto checked = [this, shard, done = std::move(done)](BackendDone outcome) {
      if (places_[shard.value()]->recovers.erase(outcome.op) > 0 && outcome.status.ok()) {
        OnRecovered(shard, *std::get<std::shared_ptr<const RecoveredState>>(outcome.value));
      }
      done(std::move(outcome));
    };
    places_[shard.value()]->recovers.clear();
    auto backend = Start(spec, chunks, owned, shard, executor, account, checked);
    if (backend.ok() && disk(shard).on()) return *std::move(backend);
    if (disk(shard).on()) {
      ends_.push_back(absl::StrCat("start: ", backend.status().ToString()));
    } else {
      ++cuts_;
    }
    return nullptr;
  };
  cluster.on_crash = [this](ShardId shard) {
    disk(shard).CutPower(++draws_);
    ++cuts_;
  };
  cluster.is_dead = [this](ShardId shard) { return !disk(shard).on(); };
  cluster.on_abort = [this](ShardId, const effect::Abort& abort) { ends_.push_back(abort.why); };
  cluster.watch = [this](ShardId shard, const Effect& effect) { Watch(shard, effect); };
  return cluster;
}

absl::StatusOr<std::unique_ptr<StateBackend>> DurableDisks::Start(
    const JobSpec& spec, const ChunkMap& chunks, const std::vector<ChunkId>& owned, ShardId shard,
    Executor* executor, MemoryAccount* account, BackendDoneFn done) {
  Place* const place = places_[shard.value()].get();
  place->catalogue.reset();
  place->store.reset();
  place->relay.to = executor;
  monitor_.OnProcess(shard);
  place->disk->PowerOn();
  EPS_ASSIGN_OR_RETURN(place->store,
                       LogStore::Open(place->disk->blocking(), kCatalogue, options_.log_bytes));
  place->catalogue = std::make_unique<Catalogue>(place->store.get());
  DurableOptions durable;
  durable.disk = place->disk.get();
  durable.blocking_disk_or_null = place->disk->blocking();
  durable.catalogue = place->catalogue.get();
  durable.folder = kExtents;
  for (uint32_t drive = 0; drive < options_.drives; ++drive) {
    durable.drive_folders.push_back(absl::StrCat("/drive-", drive, "/job"));
  }
  durable.staging_bytes = options_.staging_bytes;
  durable.residual_bytes = ResidualBudget(spec, chunks, owned, /*durable=*/true);
  if (shard.value() < options_.log_steps.size()) {
    durable.log = ShardCore::LogNeeds(spec, chunks, owned, options_.shards);
    durable.log.steps = options_.log_steps[shard.value()];
  }
  const auto make = options_.in_dram ? NewDurableDramBackend : NewNvmeBackend;
  return make(spec, chunks, owned, shard, options_.shards, executor, account, durable,
              std::move(done));
}

void DurableDisks::Watch(ShardId shard, const Effect& effect) {
  Place* const place = places_[shard.value()].get();
  if (const auto* trace = std::get_if<effect::Trace>(&effect)) {
    monitor_.OnAction(shard, trace->action);
    if (!monitor_.violations().empty() && violation_.ok()) {
      violation_ = absl::InternalError(monitor_.violations()[0]);
    }
    if (trace->action.kind == TraceAction::Kind::kDurable) place->said = trace->action.cut;
    return;
  }
  if (const auto* recycle = std::get_if<effect::Recycle>(&effect)) {
    // Recycle follows once all shards have the cut.
    if (!acknowledged_.has_value() || *acknowledged_ < recycle->oldest_kept) {
      acknowledged_ = recycle->oldest_kept;
    }
    return;
  }
  const auto* const start = std::get_if<effect::Start>(&effect);
  if (start == nullptr) return;
  if (RequestAs<RecoverRequest>(start->request) != nullptr) {
    place->recovers.insert(start->op);
  } else if (const auto* restore = RequestAs<RestoreRequest>(start->request)) {
    place->said = restore->base;
    if (!acknowledged_.has_value()) return;
    if (!restore->base.has_value()) Violate(shard, "forgets all", *acknowledged_);
    if (restore->base < *acknowledged_) Violate(shard, "goes back", *acknowledged_);
  }
}

void DurableDisks::OnRecovered(ShardId shard, const RecoveredState& state) {
  const std::optional<CutId>& said = places_[shard.value()]->said;
  if (!said.has_value()) return;
  if (state.cuts.empty()) return Violate(shard, "has no cut", *said);
  if (state.cuts.back().id < *said) Violate(shard, "has older cuts only", *said);
}

void DurableDisks::Violate(ShardId shard, const std::string& what, const CutId& had) {
  if (!violation_.ok()) return;
  violation_ = absl::DataLossError(absl::StrCat("shard ", shard.value(), " ", what,
                                                " and had said to have step ", had.step.value(),
                                                ", term ", had.term.value()));
}

DurableDisks::Image DurableDisks::Contents(ShardId shard) const {
  Image image;
  SimulatedDisk* const disk = places_[shard.value()]->disk.get();
  for (const char* folder : {kCatalogue, kExtents}) {
    const absl::StatusOr<std::vector<std::string>> names = disk->List(folder);
    EPS_CHECK_MSG(names.ok(), names.status().ToString());
    for (const std::string& name : *names) {
      const std::string path = absl::StrCat(folder, "/", name);
      std::string content = disk->Contents(path);
      if (!content.empty()) image[path] = std::move(content);
    }
  }
  return image;
}

void DurableTraining::RestartAll() {
  for (uint32_t s = 0; s < cluster().shards(); ++s) {
    if (!cluster().IsUp(ShardId(s))) cluster().Restart(ShardId(s));
  }
}

absl::Status DurableTraining::CompareWith(const CoreTraining::Outcome& expected) {
  const auto undisturbed = [this] {
    RestartAll();
    cluster().RunSome(100);  // otherwise requests arrive faster than they are served
  };
  const absl::Status finished = Finish(undisturbed, 2000);
  EPS_RETURN_IF_ERROR(violation());
  EPS_RETURN_IF_ERROR(CheckServed(expected));
  EPS_RETURN_IF_ERROR(finished);
  cluster().Run();
  if (!AllUp()) return absl::UnavailableError("a process ended when all was done");
  const size_t ended = ends().size();
  const CoreTraining::Outcome outcome = End();
  EPS_RETURN_IF_ERROR(CheckServed(expected));
  if (ends().size() > ended) return absl::UnavailableError(ends().back());
  if (outcome.digest == expected.digest) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("digests differ: ", expected.digest, " expected, ", outcome.digest, " found"));
}

absl::Status DurableTraining::FinishAsIn(const CoreTraining::Outcome& expected,
                                         const std::function<void()>& between) {
  const absl::Status finished = Finish(between, 20'000);
  for (uint32_t s = 0; s < shards(); ++s) disk(ShardId(s)).CutPowerAtCall(kNever, 0);
  EPS_RETURN_IF_ERROR(finished);
  for (int equal = 0;;) {
    const absl::Status compared = CompareWith(expected);
    if (!compared.ok() && !absl::IsUnavailable(compared)) return compared;
    if (compared.ok() && ++equal == 2) return absl::OkStatus();
    for (uint32_t s = 0; s < shards(); ++s) {
      if (cluster().IsUp(ShardId(s))) cluster().Crash(ShardId(s));
    }
  }
}

}  // namespace eps
