// Cuts that the time asks for (CoreLimits::cut_ms), in the time of the events.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing/tally.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint32_t kShards = 3;
constexpr uint64_t kSeeds = 10;
constexpr uint64_t kSteps = 24;
constexpr uint64_t kStepMs = 400;
constexpr uint64_t kCutMs = 1000;
// The steps of kCutMs, one that is decided after it, and one that is decided ahead.
constexpr uint64_t kMostSteps = (kCutMs + kStepMs - 1) / kStepMs + 2;

// A job whose only reason for cuts before the last step is the time. A step takes kStepMs.
class TimedJob {
 public:
  TimedJob(Mode mode, uint64_t seed, uint64_t cut_ms)
      : spec_(Spec(mode)),
        expected_(UndisturbedOutcome(spec_)),
        disks_(DiskOptions(seed, cut_ms)),
        training_(spec_, Watched(disks_.ForCluster()), /*fetches=*/true) {}

  CoreCluster& cluster() { return training_.cluster(); }
  // Brings the job to its end and compares it with an undisturbed one.
  void Finish(const std::function<void()>& between) {
    const absl::Status finished = training_.Finish([&] {
      between();
      PassTime();
      cluster().RunSome(3);
    });
    ASSERT_TRUE(finished.ok()) << finished.message().substr(0, 2000);
    cluster().Run();
    EXPECT_TRUE(disks_.violation().ok()) << disks_.violation();
    EXPECT_EQ(training_.End().digest, expected_.digest);
    EXPECT_TRUE(training_.CheckServed(expected_).ok());
  }
  // The steps whose border a shard has cut.
  std::set<uint64_t> CutsOf(uint32_t shard) const {
    const auto found = cut_.find(ShardId(shard));
    return found == cut_.end() ? std::set<uint64_t>() : found->second;
  }
  // The most steps that the lead had open beyond the youngest cut that every shard has.
  uint64_t most_behind() const { return most_behind_; }

 private:
  static JobSpec Spec(Mode mode) {
    JobSpec spec =
        SmallDurableSpec(mode == Mode::kEager ? Clip::kNone : Clip::kExact, mode, "fp32");
    spec.training.steps = kSteps;
    return spec;
  }
  static DurableDisks::Options DiskOptions(uint64_t seed, uint64_t cut_ms) {
    DurableDisks::Options options;
    options.shards = kShards;
    options.seed = seed;
    options.cut_steps = 0;
    options.cut_ms = cut_ms;
    return options;
  }
  CoreCluster::Options Watched(CoreCluster::Options options) {
    options.watch = [this, watch = options.watch](ShardId shard, const Effect& effect) {
      const auto* const trace = std::get_if<effect::Trace>(&effect);
      if (trace != nullptr && trace->action.kind == TraceAction::Kind::kCut) {
        cut_[shard].insert(trace->action.cut.step.value());
      }
      watch(shard, effect);
    };
    return options;
  }
  // Lets kStepMs pass whenever the lead has opened another step. Cuts take no time: a cut of more
  // than a tenth of kCutMs would put the next one off.
  void PassTime() {
    if (!cluster().IsUp(ShardId(0))) return;
    const v1::StatusReply status = cluster().Status(ShardId(0));
    if (status.state() != v1::JOB_STATE_RUNNING || status.step() == step_) return;
    step_ = status.step();
    cluster().Run();
    cluster().now_ms += kStepMs;
    const uint64_t everywhere =
        disks_.acknowledged().has_value() ? disks_.acknowledged()->step.value() : 0;
    most_behind_ = std::max(most_behind_, step_ - std::min(step_, everywhere + 1));
  }

  const JobSpec spec_;
  const CoreTraining::Outcome expected_;
  DurableDisks disks_;
  std::map<ShardId, std::set<uint64_t>> cut_;
  uint64_t step_ = 0;
  uint64_t most_behind_ = 0;
  CoreTraining training_;
};

class CutTimeTest : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, CutTimeTest, testing::Values(Mode::kEager, Mode::kSealed),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

TEST_P(CutTimeTest, EveryShardCutsTheSameBorders) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TimedJob job(GetParam(), seed, kCutMs);
    job.Finish([] {});
    const std::set<uint64_t> cuts = job.CutsOf(0);
    EXPECT_GE(cuts.size(), kSteps / kMostSteps);
    for (uint32_t s = 1; s < kShards; ++s) EXPECT_EQ(job.CutsOf(s), cuts) << "shard " << s;
    EXPECT_LE(job.most_behind(), kMostSteps);
  }
}

TEST_P(CutTimeTest, WithoutItOnlyTheEndsAreCut) {
  TimedJob job(GetParam(), /*seed=*/1, /*cut_ms=*/0);
  job.Finish([] {});
  EXPECT_EQ(job.CutsOf(0), (std::set<uint64_t>{0, kSteps}));
}

TEST_P(CutTimeTest, CrashesRepeatFewSteps) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TimedJob job(GetParam(), seed, kCutMs);
    Dice dice(seed);
    int crashes = 3;
    job.Finish([&] {
      for (uint32_t s = 0; s < kShards; ++s) {
        if (!job.cluster().IsUp(ShardId(s))) job.cluster().Restart(ShardId(s));
      }
      if (crashes == 0 || dice(40) > 0) return;
      --crashes;
      job.cluster().Crash(ShardId(static_cast<uint32_t>(dice(kShards))));
    });
    EXPECT_EQ(crashes, 0);
    EXPECT_LE(job.most_behind(), kMostSteps);
  }
}

}  // namespace
}  // namespace eps
