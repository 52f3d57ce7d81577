#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/durable_world.h"

namespace eps {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Below(uint64_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

// The content that a restored cut must have.
struct Snapshot {
  Version version;
  std::map<uint32_t, std::string> chunks;
  uint64_t residual_seed = 0;  // 0 for no residuals
};

// A sequence of processes that train, cut, recycle and restore, each until the power fails. The
// oracle knows the content of every cut, and the oldest cut that recovery may return to.
class Story {
 public:
  Story(const DurableKind& kind, uint64_t seed) : world_(kind, seed + 1), random_(seed) {}

  void Run(int lives) {
    for (int life = 0; life < lives && !testing::Test::HasFailure(); ++life) {
      // A process opens and syncs each drive's files.
      const uint64_t opening = 40 * (1 + world_.kind.drives);
      world_.disk.CutPowerAtCall(1 + random_.Below(life % 4 == 0 ? opening : 360 + opening),
                                 random_.Below(1000));
      auto process = std::make_unique<DurableProcess>(&world_);
      if (process->status().ok()) Live(process.get());
      if (world_.disk.on()) world_.disk.CutPower(random_.Below(1000));
      DurableProcess::Abandon(std::move(process));
      world_.disk.PowerOn();
    }
  }
  int cuts() const { return cuts_; }
  int restores() const { return restores_; }
  int older() const { return older_; }

 private:
  // Runs tasks in any order until the operation completes. Returns false if the power fails.
  bool Await(DurableProcess* process, OpId op) {
    while (!process->IsDone(op) && world_.disk.on() && !world_.executor.empty()) RunOne();
    if (process->IsDone(op)) return true;
    EXPECT_FALSE(world_.disk.on()) << "operation " << op << " hangs";
    return false;
  }
  void RunOne() { world_.executor.Run(random_.Below(world_.executor.size())); }

  // Returns the outcome, or null if the power failed first or made it an error.
  std::unique_ptr<BackendDone> Outcome(DurableProcess* process, OpId op) {
    if (!Await(process, op)) return nullptr;
    auto done = std::make_unique<BackendDone>(process->Take(op));
    if (done->status.ok()) return done;
    EXPECT_FALSE(world_.disk.on()) << done->status;
    return nullptr;
  }

  void Live(DurableProcess* process) {
    const OpId op = process->Submit(RecoverRequest{});
    const auto recovered = Outcome(process, op);
    if (recovered == nullptr) return;
    const RecoveredState state = *std::get<std::shared_ptr<const RecoveredState>>(recovered->value);
    ASSERT_GE(state.promised, term_);
    if (state.cuts.empty()) {
      ASSERT_FALSE(floor_.has_value()) << "a cut that had completed is lost";
      if (!Begin(process)) return;
    } else {
      for (const CutBorder& border : state.cuts) {
        ASSERT_EQ(known_.count(border.id), 1u) << "a cut that was never made";
        ASSERT_EQ(border.version, known_[border.id].version);
      }
      ASSERT_FALSE(floor_.has_value() && state.cuts.back().id < *floor_) << "too old";
      if (!Restore(process, state)) return;
    }
    while (world_.disk.on() && !testing::Test::HasFailure()) {
      if (!Step(process)) return;
    }
  }

  bool Begin(DurableProcess* process) {
    step_ = 0;
    version_ = Version(0);
    std::vector<OpId> ops;
    for (const ChunkId id : world_.owned) {
      ops.push_back(process->Submit(InitializeRequest{id}));
    }
    for (const OpId op : ops) {
      if (Outcome(process, op) == nullptr) return false;
    }
    return Cut(process);
  }

  bool Restore(DurableProcess* process, const RecoveredState& state) {
    // Any of them may be the youngest that all shards have.
    const bool older = state.cuts.size() > 1 && random_.Below(2) == 0;
    const CutId base = state.cuts[state.cuts.size() - (older ? 2 : 1)].id;
    const Term term(std::max(state.promised, term_).value() + 1);
    floor_ = base;
    const OpId op = process->Submit(RestoreRequest{base, term});
    const auto restored = Outcome(process, op);
    if (restored == nullptr) return false;
    term_ = term;
    for (auto it = known_.begin(); it != known_.end();) {
      it = base < it->first ? known_.erase(it) : std::next(it);
    }
    const Snapshot& snapshot = known_[base];
    step_ = base.step.value();
    version_ = snapshot.version;
    process->backend().Recycle(base);  // all shards have restored it
    for (const ChunkId id : world_.owned) {
      const OpId read = process->Submit(ReadStateRequest{id, version_});
      const auto found = Outcome(process, read);
      if (found == nullptr) return false;
      EXPECT_TRUE(std::get<Bytes>(found->value).view() == snapshot.chunks.at(id.value()))
          << "chunk " << id << " of the cut of step " << base.step;
    }
    const auto& residuals = std::get<std::shared_ptr<const CutContent>>(restored->value)->residuals;
    const auto expected = snapshot.residual_seed == 0 ? std::vector<CutResidual>()
                                                      : SomeResiduals(snapshot.residual_seed);
    EXPECT_EQ(residuals.size(), expected.size());
    for (size_t i = 0; i < std::min(residuals.size(), expected.size()); ++i) {
      EXPECT_TRUE(residuals[i].bytes.view() == expected[i].bytes.view());
    }
    ++restores_;
    older_ += older;
    return !testing::Test::HasFailure();
  }

  // Begins to update every chunk by one version, or to import that version.
  std::vector<OpId> Update(DurableProcess* process) {
    std::vector<OpId> ops;
    const bool imports = random_.Below(4) == 0;
    for (const ChunkId id : world_.owned) {
      const Chunk& chunk = world_.chunks.chunk(id);
      if (imports) {
        ops.push_back(process->Submit(DurableProcess::SomeWrite(chunk, version_.Next())));
      } else {
        ops.push_back(process->Submit(SomeUpdate(chunk, version_, random_.Below(99))));
      }
    }
    version_ = version_.Next();
    return ops;
  }

  // Updates every chunk, sometimes twice, and cuts.
  bool Step(DurableProcess* process) {
    const uint64_t versions = random_.Below(4) == 0 ? 2 : random_.Below(5) == 0 ? 0 : 1;
    std::vector<OpId> ops;
    for (uint64_t i = 0; i < versions; ++i) {
      for (const OpId op : Update(process)) ops.push_back(op);
    }
    if (random_.Below(2) == 0) {
      for (const OpId op : ops) {
        if (Outcome(process, op) == nullptr) return false;
      }
      ops.clear();
    }
    if (!Cut(process)) return false;
    for (const OpId op : ops) {
      if (Outcome(process, op) == nullptr) return false;
    }
    return true;
  }

  // Cuts, and recycles older cuts, so that the next step finds free slots.
  bool Cut(DurableProcess* process) {
    ++step_;
    CutRequest request = CutAt(step_, term_.value(), version_.value());
    Snapshot snapshot;
    snapshot.version = version_;
    if (random_.Below(3) > 0) {
      snapshot.residual_seed = 1 + random_.Below(1000);
      request.content.residuals = SomeResiduals(snapshot.residual_seed);
    }
    std::vector<OpId> reads;
    for (const ChunkId id : world_.owned) {
      reads.push_back(process->Submit(ReadStateRequest{id, version_}));
    }
    const OpId op = process->Submit(request);
    // Sometimes the next step does not wait for the cut.
    std::vector<OpId> past;
    if (random_.Below(2) == 0) past = Update(process);
    for (size_t i = 0; i < reads.size(); ++i) {
      const auto read = Outcome(process, reads[i]);
      if (read == nullptr) return false;  // not captured, so the cut cannot be durable
      snapshot.chunks[world_.owned[i].value()] = std::string(std::get<Bytes>(read->value).view());
      if (i + 1 == reads.size()) known_[request.border.id] = snapshot;
    }
    if (Outcome(process, op) == nullptr) return false;
    floor_ = request.border.id;
    ++cuts_;
    process->backend().Recycle(request.border.id);
    for (const OpId update : past) {
      if (Outcome(process, update) == nullptr) return false;
    }
    return true;
  }

  DurableWorld world_;
  Random random_;
  std::map<CutId, Snapshot> known_;
  std::optional<CutId> floor_;
  Term term_;
  uint64_t step_ = 0;
  Version version_;
  int cuts_ = 0, restores_ = 0, older_ = 0;
};

class DurablePower : public testing::TestWithParam<DurableKind> {};

TEST_P(DurablePower, PowerCutAnywhereLeavesTheYoungestCut) {
  const int seeds = std::getenv("EPS_LONG") != nullptr ? 3000 : 20;
  int cuts = 0, restores = 0, older = 0;
  for (int seed = 0; seed < seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    // The world must outlive the abandoned processes.
    auto* const story = new Story(GetParam(), seed);
    static auto* const stories = new std::vector<Story*>();
    stories->push_back(story);
    story->Run(25);
    cuts += story->cuts();
    restores += story->restores();
    older += story->older();
  }
  EXPECT_GT(cuts, 5 * seeds);
  EXPECT_GT(restores, 3 * seeds);
  EXPECT_GT(older, seeds / 4);
}

// Half of SmallSpec is in memory.
constexpr DurableKind kInDramAndOnNvme = {"DramAndNvme", false, &NewNvmeBackend, 0, 0, {}, 20'000};
constexpr DurableKind kInDramAndInDevices = {
    "DramAndDevices", false, &NewNvmeBackend, 2, 2, {}, 20'000};
constexpr DurableKind kInDevicesAndOnDrives = {"DevicesAndDrives", false, &NewNvmeBackend, 3, 1};
constexpr DurableKind kInAllPlaces = {"AllPlaces", false, &NewNvmeBackend, 3, 2, {}, 20'000};

INSTANTIATE_TEST_SUITE_P(Kinds, DurablePower,
                         testing::Values(kInDram, kOnNvme, kInDramWithDrives, kOnDrives, kInDevices,
                                         kInNaiveDevices, kInHandoverDevices, kInDramAndOnNvme,
                                         kInDramAndInDevices, kInDevicesAndOnDrives, kInAllPlaces),
                         [](const testing::TestParamInfo<DurableKind>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace eps
