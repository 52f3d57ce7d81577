// Records every call of the operating system that a real run makes below its data directory, those
// of the disk and those of RocksDB, in one order: creation, cuts, the log, a new term, a recovery.
// Then cuts the power at places all over the record. Each time, a server starts on the files that
// survived, and recovers a cut that was committed, and its bits. A replayed log is a copy, so it is
// never used.

#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "storage/backends/durable_storage.h"
#include "storage/testing/backend_harness.h"
#include "storage/testing/durable_world.h"
#include "storage/testing/recorded_calls.h"

namespace eps {
namespace {

constexpr uint64_t kTerms = 1000;  // marks from here on say that a term is promised
constexpr uint64_t kSteps = 6;

std::string NewFolder() {
  const bool in_memory = access("/dev/shm", W_OK) == 0;
  std::string folder =
      (in_memory ? std::string("/dev/shm") : testing::TempDir()) + "/eps-power-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

// A server's storage with the backend of one job.
class Server {
 public:
  Server(const std::string& kind, const std::string& path)
      : spec_(SmallSpec()), chunks_(ChunkMap::Build(spec_)), pool_(2) {
    StorageOptions options;
    options.kind = kind;
    options.path = path;
    options.staging_bytes = uint64_t{1} << 20;
    options.log_steps = 2;
    auto storage = DurableStorage::Open(options);
    status_ = storage.status();
    if (!status_.ok()) return;
    storage_ = *std::move(storage);
    ShardPlace place;
    place.residual_bytes = 10000;
    place.log.AddEntries(4, 1000);
    std::vector<ChunkId> owned;
    for (const Chunk& chunk : chunks_.chunks()) owned.push_back(chunk.id);
    auto backend =
        storage_->NewBackend(spec_, chunks_, owned, place, &pool_, &account_, completions_.Sink());
    status_ = backend.status();
    if (status_.ok()) backend_ = *std::move(backend);
  }

  const absl::Status& status() const { return status_; }

  // Runs one operation, which `begin` starts.
  BackendDone Do(Request request) {
    const OpId op = completions_.Next();
    backend_->Submit(op, std::move(request));
    return completions_.Take(op);
  }
  absl::Status Promise(uint64_t term) { return Do(PromiseRequest{Term(term)}).status; }
  absl::Status StartLog(uint64_t term, uint64_t base_step, uint64_t base_term) {
    const CutId base = {Step(base_step), Term(base_term)};
    return Do(StartLogRequest{FoundLog{{Term(term), 77}, base, base}}).status;
  }
  // Logs an entry of the step, makes the state of the version that the step ends with, and cuts.
  absl::Status Cut(uint64_t step, uint64_t term, bool logs) {
    if (logs) {
      LogEntry entry;
      entry.step = Step(step);
      entry.text = absl::StrCat("step ", step);
      EPS_RETURN_IF_ERROR(Do(LogRequest{entry}).status);
    }
    for (const Chunk& chunk : chunks_.chunks()) {
      const std::string state = DurableProcess::SomeState(chunk, Version(step));
      EPS_RETURN_IF_ERROR(
          Do(WriteStateRequest{chunk.id, Version(step), Bytes::CopyOf(state)}).status);
    }
    CutRequest request = CutAt(step, term, step);
    const CutId cut = request.border.id;
    request.content.residuals = SomeResiduals(step);
    EPS_RETURN_IF_ERROR(Do(std::move(request)).status);
    RecordMark(step);
    backend_->Recycle(cut);
    return absl::OkStatus();
  }
  absl::StatusOr<RecoveredState> Recover() {
    const BackendDone done = Do(RecoverRequest());
    EPS_RETURN_IF_ERROR(done.status);
    return *std::get<std::shared_ptr<const RecoveredState>>(done.value);
  }
  absl::Status Restore(const CutId& cut, uint64_t term) {
    EPS_RETURN_IF_ERROR(Do(QuiesceRequest()).status);
    return Do(RestoreRequest{cut, Term(term)}).status;
  }
  // Returns an error unless every chunk has the bits of the version.
  absl::Status CheckState(uint64_t version) {
    for (const Chunk& chunk : chunks_.chunks()) {
      const BackendDone done = Do(ReadStateRequest{chunk.id, Version(version)});
      EPS_RETURN_IF_ERROR(done.status);
      if (std::get<Bytes>(done.value).view() !=
          DurableProcess::SomeState(chunk, Version(version))) {
        return absl::DataLossError(absl::StrCat("chunk ", chunk.id.value(), " has other bits"));
      }
    }
    return absl::OkStatus();
  }

 private:
  const JobSpec spec_;
  const ChunkMap chunks_;
  absl::Status status_;
  MemoryAccount account_;
  Completions completions_;
  ThreadPool pool_;
  std::unique_ptr<DurableStorage> storage_;
  std::unique_ptr<StateBackend> backend_;
};

// Two processes: the first begins a second term, the second recovers.
absl::Status RunJob(const std::string& kind, const std::string& path) {
  {
    Server server(kind, path);
    EPS_RETURN_IF_ERROR(server.status());
    EPS_RETURN_IF_ERROR(server.Promise(1));
    RecordMark(kTerms + 1);
    EPS_RETURN_IF_ERROR(server.Cut(1, 1, /*logs=*/false));
    EPS_RETURN_IF_ERROR(server.StartLog(1, 1, 1));
    for (uint64_t step = 2; step <= 3; ++step) {
      EPS_RETURN_IF_ERROR(server.Cut(step, 1, /*logs=*/true));
    }
    EPS_RETURN_IF_ERROR(server.Promise(2));
    RecordMark(kTerms + 2);
    EPS_RETURN_IF_ERROR(server.Restore({Step(3), Term(1)}, 2));
    EPS_RETURN_IF_ERROR(server.StartLog(2, 3, 1));
    EPS_RETURN_IF_ERROR(server.Cut(4, 2, /*logs=*/true));
  }
  Server server(kind, path);
  EPS_RETURN_IF_ERROR(server.status());
  EPS_RETURN_IF_ERROR(server.Recover().status());
  EPS_RETURN_IF_ERROR(server.Promise(3));
  RecordMark(kTerms + 3);
  EPS_RETURN_IF_ERROR(server.Restore({Step(4), Term(2)}, 3));
  for (uint64_t step = 5; step <= kSteps; ++step) {
    EPS_RETURN_IF_ERROR(server.Cut(step, 3, /*logs=*/false));
  }
  return absl::OkStatus();
}

// Starts a server on what a power cut left. `step` and `term` were acknowledged before; 0: none.
absl::Status CheckWhatIsLeft(const std::string& kind, const std::string& path, uint64_t step,
                             uint64_t term, uint64_t* found) {
  Server server(kind, path);
  EPS_RETURN_IF_ERROR(server.status());
  EPS_ASSIGN_OR_RETURN(const RecoveredState state, server.Recover());
  if (state.promised < Term(term)) return absl::DataLossError("a promised term is lost");
  if (state.cuts.empty()) {
    if (step == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("the cut of step ", step, " is lost"));
  }
  const CutId newest = state.cuts.back().id;
  *found = newest.step.value();
  if (*found < step) return absl::DataLossError(absl::StrCat("the newest cut is ", *found));
  EPS_RETURN_IF_ERROR(server.Restore(newest, 9));
  return server.CheckState(*found);
}

class RealPower : public testing::TestWithParam<const char*> {};

TEST_P(RealPower, RecoversACommittedCutAfterAnyCall) {
  const std::string folder = NewFolder();
  BeginRecording(folder);
  const absl::Status run = RunJob(GetParam(), folder + "/server/state");
  const std::vector<RecordedCall> calls = EndRecording();
  ASSERT_TRUE(run.ok()) << run;
  std::filesystem::remove_all(folder);
  const size_t stride =
      std::getenv("EPS_LONG") != nullptr ? 1 : std::max<size_t>(calls.size() / 80, 1);
  std::mt19937_64 random(11);
  CallReplay replay;
  uint64_t step = 0;
  uint64_t term = 0;
  size_t cuts = 0;
  std::set<uint64_t> steps;
  for (const RecordedCall& call : calls) {
    replay.Carry(call);
    if (call.kind == RecordedCall::kMark) {
      (call.mark > kTerms ? term : step) = call.mark > kTerms ? call.mark - kTerms : call.mark;
    }
    if (random() % stride != 0) continue;
    const std::string left = NewFolder();
    replay.Cut(&random, left);
    uint64_t found = 0;
    const absl::Status checked =
        CheckWhatIsLeft(GetParam(), left + "/server/state", step, term, &found);
    ASSERT_TRUE(checked.ok()) << "after call " << &call - calls.data() << " (kind " << call.kind
                              << ", " << call.path << "), step " << step << ", in " << left << ": "
                              << checked;
    std::filesystem::remove_all(left);
    steps.insert(found);
    ++cuts;
  }
  std::printf("%zu power cuts in %zu calls\n", cuts, calls.size());
  EXPECT_GT(cuts, 40u);
  EXPECT_EQ(steps.size(), kSteps + 1) << "not every cut was the newest one once";
}

INSTANTIATE_TEST_SUITE_P(Kinds, RealPower, testing::Values("nvme", "dram"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace eps
