// Cuts the power under the catalogue's database: RocksDB runs on a file system that records its
// writes and syncs (rocksdb_recording.h). The test cuts the recording anywhere, drops unsynced data
// wholly or partly, and opens the database that a disk would then hold.

#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/testing/rocksdb_recording.h"

namespace eps {
namespace {

constexpr char kFolder[] = "/catalogue";

// The catalogue's records of this test's one job; none before the job is added.
struct State {
  Term promised;
  std::vector<CatalogueCut> cuts;
  friend bool operator==(const State& a, const State& b) {
    return a.promised == b.promised && a.cuts == b.cuts;
  }
};

State StateOf(const Catalogue& catalogue) {
  const JobId job = SampleJob("power").id;
  if (!catalogue.FindJob(job).ok()) return {};
  return {catalogue.FindJob(job)->promised, *catalogue.Cuts(job)};
}

// Makes the i-th change of the catalogue.
absl::Status Change(Catalogue* catalogue, uint64_t i) {
  const CatalogueJob job = SampleJob("power");
  if (i == 0) return catalogue->AddJob(job);
  const State state = StateOf(*catalogue);
  if (i % 7 == 3 && state.cuts.size() > 2) {
    return catalogue->Restore(job.id, state.cuts[state.cuts.size() - 2].border.id, Term(i + 1));
  }
  if (i % 5 == 2) return catalogue->Promise(job.id, Term(i + 1));
  if (i % 11 == 10) return catalogue->RemoveCutsBelow(job.id, state.cuts.back().border.id);
  return catalogue->AddCut(job.id, SampleCut(i, state.promised.value()), {});
}

struct Run {
  std::vector<State> states;  // element i is the state after i changes
  std::vector<Event> events;
};

Run RecordRun(bool log_syncs_lie) {
  Run run;
  run.states.emplace_back();
  Recorder recorder(log_syncs_lie);
  const std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
  const auto env = rocksdb::NewCompositeEnv(
      std::make_shared<RecordingFileSystem>(memory->GetFileSystem(), &recorder));
  uint64_t changes = 0;
  for (int session = 0; session < 4; ++session) {
    const auto store = OpenRocksDbIn(env.get(), kFolder);
    EXPECT_EQ(store.status(), absl::OkStatus());
    Catalogue catalogue(store->get());
    for (int i = 0; i < 25; ++i) {
      EXPECT_EQ(Change(&catalogue, changes++), absl::OkStatus());
      recorder.Add({Event::kAcknowledge, "", "", 0});
      run.states.push_back(StateOf(catalogue));
    }
  }
  run.events = recorder.events();
  return run;
}

struct Tally {
  int cuts = 0;
  int unreadable = 0;
  int acknowledged_lost = 0;
  int unacknowledged_kept = 0;
};

Tally CutEverywhere(const Run& run) {
  Tally tally;
  std::mt19937_64 random(7);
  const uint64_t stride = std::getenv("EPS_LONG") != nullptr ? 1 : 1 + run.events.size() / 400;
  Replay replay;
  for (size_t at = 0; at < run.events.size(); ++at) {
    replay.Carry(run.events[at]);
    if (random() % stride != 0) continue;
    ++tally.cuts;
    const std::unique_ptr<rocksdb::Env> env(rocksdb::NewMemEnv(rocksdb::Env::Default()));
    replay.Cut(kFolder, &random, env.get());
    const auto store = OpenRocksDbIn(env.get(), kFolder);
    if (!store.ok()) {
      if (tally.unreadable++ == 0) std::printf("%s\n", store.status().ToString().c_str());
      continue;
    }
    const State found = StateOf(Catalogue(store->get()));
    const size_t acknowledged = replay.acknowledged();
    if (found == run.states[acknowledged]) continue;
    if (acknowledged + 1 < run.states.size() && found == run.states[acknowledged + 1]) {
      ++tally.unacknowledged_kept;
    } else {
      ++tally.acknowledged_lost;
    }
  }
  std::printf("%d cuts in %zu events: unreadable %d, acknowledged lost %d, more kept %d\n",
              tally.cuts, run.events.size(), tally.unreadable, tally.acknowledged_lost,
              tally.unacknowledged_kept);
  return tally;
}

TEST(RocksDbPower, AcknowledgedChangesSurviveACutAnywhere) {
  const Tally tally = CutEverywhere(RecordRun(/*log_syncs_lie=*/false));
  EXPECT_GT(tally.cuts, 200);
  EXPECT_EQ(tally.unreadable, 0);
  EXPECT_EQ(tally.acknowledged_lost, 0);
  EXPECT_GT(tally.unacknowledged_kept, 0);
}

// Proves that the test above can fail: the disk ignores syncs of the log.
TEST(RocksDbPower, DetectsADiskThatForgetsSyncs) {
  const Tally tally = CutEverywhere(RecordRun(/*log_syncs_lie=*/true));
  EXPECT_GT(tally.acknowledged_lost, 20);
}

}  // namespace
}  // namespace eps
