// Power cuts of a whole cluster: cores, backends, catalogues. Whatever a cut leaves of unsynced
// data, the job ends with the bits of an undisturbed run.
//
// EPS_POWER_CUTS=N sets the number of cuts. EPS_POWER_TALLY=FILE keeps count, so that an
// interrupted run can continue. EPS_POWER_SEED=N runs only this story.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/tally.h"
#include "base/testing/test_specs.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

struct Job {
  JobSpec spec;
  CoreTraining::Outcome expected;
};

// A job whose loss scale falls and rises.
JobSpec ScaledSpec() {
  JobSpec spec = SmallDurableSpec(Clip::kExact, Mode::kSealed, "fp32");
  spec.training.precision = Precision::kCmp;
  spec.training.nonfinite = Nonfinite::kSkip;
  spec.training.steps = 8;
  spec.training.loss_scale.initial_log2 = 13;
  spec.training.loss_scale.window = 2;
  return spec;
}

// A job whose matrices are frozen, also the tied one; or all but one bias, so that some servers
// have nothing to train.
JobSpec FrozenSpec(Mode mode) {
  JobSpec spec = SmallDurableSpec(Clip::kNone, mode, "topk:0.05");
  const bool all = mode == Mode::kSealed;
  Freeze(all ? "bias.1" : "layer", /*others=*/all, &spec);
  return spec;
}

// A job with trust ratios.
JobSpec AdaptingSpec() {
  JobSpec spec = SmallDurableSpec(Clip::kExact, Mode::kSealed, "bf16");
  spec.optimizer.name = OptimizerName::kLamb;
  return spec;
}

const std::vector<Job>& Jobs() {
  static const auto* const jobs = [] {
    auto* made = new std::vector<Job>();
    for (const JobSpec& spec :
         {SmallDurableSpec(Clip::kNone, Mode::kEager, "fp32"),
          SmallDurableSpec(Clip::kLagged, Mode::kEager, "bf16"),
          SmallDurableSpec(Clip::kExact, Mode::kSealed, "fp32"),
          SmallDurableSpec(Clip::kNone, Mode::kSealed, "topk:0.05"), ScaledSpec(), AdaptingSpec(),
          FrozenSpec(Mode::kEager), FrozenSpec(Mode::kSealed)}) {
      made->push_back({spec, UndisturbedOutcome(spec)});
    }
    return made;
  }();
  return *jobs;
}

// Draws a cluster without contribution logs.
DurableDisks::Options Draw(uint64_t seed, Dice* dice) {
  DurableDisks::Options options;
  options.shards = static_cast<uint32_t>(1 + (*dice)(3));
  options.seed = seed;
  options.cut_steps = 1 + (*dice)(3);
  options.in_dram = (*dice)(3) == 0;
  options.drives = (*dice)(3) == 0 ? 2 : 0;
  return options;
}

// The events of one story.
struct Told {
  absl::Status status;
  uint64_t cuts = 0;
  uint64_t blackouts = 0;  // cuts of all shards at once
  uint64_t terms = 0;
  uint64_t replaced = 0;  // workers that were replaced
};

// Ends every process by a power cut, at a call of its disk or between two deliveries, until there
// were enough cuts.
Told Tell(uint64_t seed) {
  const Job& job = Jobs()[seed % Jobs().size()];
  Dice dice(seed);
  DurableDisks::Options options = Draw(seed, &dice);
  if (dice(2) == 0) options.log_steps.assign(options.shards, options.cut_steps);
  DurableTraining training(job.spec, options, /*fetches=*/dice(2) == 0);
  CoreCluster& cluster = training.cluster();
  Told told;
  const uint64_t wanted = 40 + dice(40);
  const auto plan = [&](ShardId shard) {
    if (training.disks().cuts() >= wanted) return;
    const uint64_t calls = dice(3) == 0 ? 15 : dice(3) == 0 ? 150 : 60;
    // Draws in separate statements, because compilers differ in the order in which they evaluate
    // arguments.
    const uint64_t cut_seed = dice(1 << 30);
    const uint64_t call = 1 + dice(calls);
    training.disks().disk(shard).CutPowerAtCall(call, cut_seed);
  };
  for (uint32_t s = 0; s < options.shards; ++s) plan(ShardId(s));
  const auto between = [&] {
    for (uint32_t s = 0; s < options.shards; ++s) {
      const ShardId shard(s);
      if (cluster.IsUp(shard) || dice(3) != 0) continue;
      plan(shard);
      cluster.Restart(shard);
    }
    if (training.disks().cuts() < wanted && dice(150) == 0) {
      ++told.blackouts;
      for (uint32_t s = 0; s < options.shards; ++s) {
        if (cluster.IsUp(ShardId(s))) cluster.Crash(ShardId(s));
      }
    }
    if (training.disks().cuts() < wanted && dice(100) == 0) {
      ++told.replaced;
      training.ReplaceWorker();
    }
    cluster.RunSome(dice(20));
  };
  told.status = training.FinishAsIn(job.expected, between);
  if (!training.disks().ends().empty()) {
    told.status = absl::InternalError(
        absl::StrCat("no call failed, and a process ended: ", training.disks().ends().front()));
  }
  told.cuts = training.disks().cuts();
  if (cluster.IsUp(ShardId(0))) told.terms = cluster.Status(ShardId(0)).term();
  return told;
}

TEST(DurablePower, JobSurvivesPowerCutsBitForBit) {
  if (std::getenv("EPS_POWER_SEED") != nullptr) {
    const Told told = Tell(NumberFromEnvironment("EPS_POWER_SEED", 0));
    EXPECT_TRUE(told.status.ok()) << told.status;
    return;
  }
  const uint64_t goal = NumberFromEnvironment("EPS_POWER_CUTS", 10'000);
  Tally tally(std::getenv("EPS_POWER_TALLY"));
  uint64_t cuts_here = 0;
  const auto begun = std::chrono::steady_clock::now();
  while (tally["cuts"] < goal) {
    const uint64_t seed = ++tally["stories"];
    const Told told = Tell(seed);
    tally["cuts"] += told.cuts;
    tally["blackouts"] += told.blackouts;
    tally["terms"] += told.terms;
    tally["replaced"] += told.replaced;
    cuts_here += told.cuts;
    if (!told.status.ok()) {
      ++tally["failed"];
      ADD_FAILURE() << "EPS_POWER_SEED=" << seed << " repeats it: " << told.status;
    }
    if (seed % 100 == 0) tally.Save();
    if (tally["failed"] > 5) break;
  }
  tally.Save();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("power cuts: %s; %.0f cuts per second\n", tally.ToString().c_str(),
              static_cast<double>(cuts_here) / seconds);
  EXPECT_EQ(tally["failed"], 0u);
  EXPECT_GT(tally["blackouts"], tally["stories"] / 2);
  EXPECT_GT(tally["terms"], tally["cuts"] / 8);
  EXPECT_GT(tally["replaced"], tally["stories"]);
}

// Once all shards have opened the job, no power cut ends its term: whatever a shard received and
// acknowledged is recovered, whichever shard dies at whatever time.
TEST(DurablePower, LogsKeepTheTermAcrossPowerCuts) {
  uint64_t cuts = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const Job& job = Jobs()[seed % Jobs().size()];
    Dice dice(seed);
    DurableDisks::Options options = Draw(seed, &dice);
    options.log_steps.assign(options.shards, options.cut_steps);
    DurableTraining training(job.spec, options, /*fetches=*/true);
    CoreCluster& cluster = training.cluster();
    training.Import();
    cluster.Run();
    ASSERT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_RUNNING) << "seed " << seed;
    const uint64_t term = cluster.Status(ShardId(0)).term();
    const auto between = [&] {
      for (uint32_t s = 0; s < options.shards; ++s) {
        const ShardId shard(s);
        if (!cluster.IsUp(shard) && dice(3) == 0) cluster.Restart(shard);
        if (!cluster.IsUp(shard) || training.disks().cuts() >= 30) continue;
        if (dice(25) == 0) cluster.Crash(shard);
      }
      cluster.RunSome(dice(20));
    };
    const absl::Status finished = training.FinishAsIn(job.expected, between);
    EXPECT_TRUE(finished.ok()) << "seed " << seed << ": " << finished;
    for (uint32_t s = 0; s < options.shards; ++s) {
      EXPECT_EQ(cluster.Status(ShardId(s)).term(), term) << "seed " << seed << ", shard " << s;
    }
    cuts += training.disks().cuts();
  }
  EXPECT_GT(cuts, 300u);
}

TEST(DurablePower, SmallestLogBoundsCutIntervalEachTerm) {
  const Job& job = Jobs()[0];
  DurableDisks::Options options;
  options.shards = 2;
  options.cut_steps = 10;  // more than the steps of the job
  options.log_steps = {0, 1};
  DurableTraining training(job.spec, options, /*fetches=*/true);
  CoreCluster& cluster = training.cluster();
  training.Import();
  cluster.Run();
  cluster.Crash(ShardId(0));  // shard 0 has no log, so a new term begins
  cluster.Restart(ShardId(0));
  uint64_t cuts = 0;
  const absl::Status finished = training.FinishAsIn(job.expected, [&] {
    cluster.RunSome(10);
    const v1::StatusReply status = cluster.Status(ShardId(0));
    if (status.counters().count("cuts") > 0) cuts = std::max(cuts, status.counters().at("cuts"));
  });
  EXPECT_TRUE(finished.ok()) << finished;
  EXPECT_GT(cluster.Status(ShardId(0)).term(), 1u);
  EXPECT_GE(cuts + 1, job.spec.training.steps);  // the last cut may complete later
}

}  // namespace
}  // namespace eps
