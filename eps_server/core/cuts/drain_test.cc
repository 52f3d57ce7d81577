// Gates and servers that drain, on simulated disks, with links that break and deliveries in any
// order. A process that drained dies like any other: with its memory and the power of its disk.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/tally.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kSeeds = 6;
constexpr uint32_t kShards = 3;
constexpr uint64_t kRareCuts = 1000;  // more than the job has steps
constexpr uint64_t kLogSteps = 8;

// A job whose only cut before the last step is one that a gate asks for.
class GatedJob {
 public:
  GatedJob(uint64_t seed, Mode mode, bool logs)
      : spec_(SmallDurableSpec(mode == Mode::kEager ? Clip::kNone : Clip::kExact, mode, "fp32")),
        expected_(UndisturbedOutcome(spec_)),
        disks_(DiskOptions(seed, logs)),
        training_(spec_, Watched(disks_.ForCluster()), /*fetches=*/true) {}

  CoreCluster& cluster() { return training_.cluster(); }
  v1::StatusReply Status(uint32_t shard = 0) { return cluster().Status(ShardId(shard)); }
  // Whether the lead is up and has this step open.
  bool IsAt(uint64_t step) {
    return cluster().IsUp(ShardId(0)) && Status().state() == v1::JOB_STATE_RUNNING &&
           Status().step() == step;
  }
  StreamId Gate(const std::string& holder, std::optional<uint64_t> step) {
    const StreamId stream = cluster().NewStream();
    cluster().Send(ShardId(0), event::Gate{stream, holder, step});
    return stream;
  }
  bool Answered(StreamId stream) { return cluster().answers.replies.count(stream) > 0; }
  void BreakLink(ShardId shard) {
    if (shard == ShardId(0) || !cluster().IsUp(ShardId(0)) || !cluster().IsUp(shard)) return;
    cluster().Send(ShardId(0), event::LinkDown{shard});
    cluster().Send(shard, event::LinkDown{ShardId(0)});
    cluster().RunSome(3);
    cluster().Send(shard, event::LinkUp{ShardId(0)});
  }
  // Brings the job to its end and compares it with an undisturbed one.
  void Finish(const std::function<void()>& between) {
    const absl::Status finished = training_.Finish(
        [&] {
          between();
          cluster().RunSome(3);
        },
        4'000);
    ASSERT_TRUE(finished.ok()) << finished.message().substr(0, 2000);
    cluster().Run();
    EXPECT_TRUE(disks_.violation().ok()) << disks_.violation();
    ASSERT_TRUE(training_.AllUp());
    EXPECT_EQ(training_.End().digest, expected_.digest);
    EXPECT_TRUE(training_.CheckServed(expected_).ok());
  }
  // The steps that the lead recorded more than once.
  std::vector<uint64_t> Repeated() const {
    std::vector<uint64_t> repeated;
    for (const auto& [step, times] : recorded_) {
      if (times > 1) repeated.push_back(step);
    }
    return repeated;
  }
  // Returns the shards that were let end since the last call, in order.
  std::vector<uint32_t> TakeDrained() { return std::exchange(drained_, {}); }

 private:
  static DurableDisks::Options DiskOptions(uint64_t seed, bool logs) {
    DurableDisks::Options options;
    options.shards = kShards;
    options.seed = seed;
    options.cut_steps = logs ? kLogSteps : kRareCuts;
    if (logs) options.log_steps.assign(kShards, kLogSteps);
    return options;
  }
  CoreCluster::Options Watched(CoreCluster::Options options) {
    options.watch = [this, watch = options.watch](ShardId shard, const Effect& effect) {
      const auto* const trace = std::get_if<effect::Trace>(&effect);
      if (trace != nullptr && trace->action.kind == TraceAction::Kind::kRecorded) {
        ++recorded_[trace->action.subject];
      }
      if (std::get_if<effect::Drained>(&effect) != nullptr) drained_.push_back(shard.value());
      watch(shard, effect);
    };
    return options;
  }

  const JobSpec spec_;
  const CoreTraining::Outcome expected_;
  DurableDisks disks_;
  std::map<uint64_t, int> recorded_;  // by step
  std::vector<uint32_t> drained_;
  CoreTraining training_;
};

// Drains the servers in step 2, each for itself, and starts each again some time after its end.
void CheckDrain(const std::set<uint32_t>& servers, uint64_t seed, Mode mode, bool logs) {
  SCOPED_TRACE(absl::StrCat("seed ", seed, mode == Mode::kEager ? " eager" : " sealed",
                            logs ? " with logs" : ""));
  GatedJob job(seed, mode, logs);
  Dice dice(seed);
  std::set<uint32_t> to_drain = servers;
  std::vector<uint32_t> ended;
  uint64_t term = 0;
  bool begun = false;
  job.Finish([&] {
    if (job.IsAt(2)) begun = true;
    if (begun && term == 0) term = job.Status().term();
    if (begun && !to_drain.empty() && dice(3) == 0) {
      const ShardId next(*to_drain.begin());
      if (!job.cluster().IsUp(next)) return;
      job.cluster().Send(next, event::Drain{});
      to_drain.erase(to_drain.begin());
    }
    if (dice(20) == 0) job.BreakLink(ShardId(static_cast<uint32_t>(dice(kShards))));
    for (const uint32_t shard : job.TakeDrained()) {
      if (!job.cluster().IsUp(ShardId(shard))) continue;
      job.cluster().Crash(ShardId(shard));
      ended.push_back(shard);
    }
    for (uint32_t s = 0; s < kShards; ++s) {
      if (!job.cluster().IsUp(ShardId(s)) && dice(10) == 0) job.cluster().Restart(ShardId(s));
    }
  });
  EXPECT_EQ(std::set<uint32_t>(ended.begin(), ended.end()), servers);
  if (logs) {
    EXPECT_EQ(job.Status().term(), term) << "nothing was lost";
  } else {
    EXPECT_THAT(job.Repeated(), IsEmpty());
  }
  EXPECT_EQ(job.Status().gates_size(), 0);
  EXPECT_EQ(job.Status().draining_size(), 0);
}

void CheckDrains(const std::set<uint32_t>& servers) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const Mode mode : {Mode::kEager, Mode::kSealed}) {
      for (const bool logs : {false, true}) CheckDrain(servers, seed, mode, logs);
    }
  }
}

TEST(Drain, AServerRepeatsNoStep) { CheckDrains({1}); }

TEST(Drain, TheLeadRepeatsNoStep) { CheckDrains({0}); }

TEST(Drain, TwoServersRepeatNoStep) { CheckDrains({1, 2}); }

TEST(Drain, LeadAndServerRepeatNoStep) { CheckDrains({0, 1}); }

TEST(Drain, AllServersRepeatNoStep) { CheckDrains({0, 1, 2}); }

TEST(Drain, WithoutADrainStepsRepeat) {
  // The control of the tests above: the same job, and a server that is killed.
  GatedJob job(1, Mode::kEager, /*logs=*/false);
  bool killed = false;
  job.Finish([&] {
    if (!killed && job.IsAt(4)) {
      job.cluster().Crash(ShardId(1));
      job.cluster().Restart(ShardId(1));
      killed = true;
    }
  });
  EXPECT_FALSE(job.Repeated().empty());
}

TEST(Drain, TheStatusNamesWhoDrains) {
  GatedJob job(0, Mode::kEager, /*logs=*/false);
  bool seen = false;
  int held = 0;
  job.Finish([&] {
    if (!seen && job.IsAt(2)) {
      job.cluster().Send(ShardId(1), event::Drain{});
      job.cluster().Run();
      const v1::StatusReply lead = job.Status();
      ASSERT_THAT(lead.draining(), ElementsAre(1));
      ASSERT_EQ(lead.gates_size(), 1);
      EXPECT_EQ(lead.gates(0).holder(), "drain/1");
      EXPECT_THAT(job.Status(1).draining(), ElementsAre(1));
      EXPECT_THAT(job.Status(1).ShortDebugString(), HasSubstr("the end of this server"));
      EXPECT_EQ(job.Status(2).gates(0).holder(), "drain/1");
      seen = true;
    }
    if (!job.TakeDrained().empty()) held = 1;
    if (held == 0 || ++held != 20) return;  // workers wait for the step after the border by then
    EXPECT_THAT(job.Status(2).ShortDebugString(), HasSubstr("server 1 drains"));
    job.cluster().Crash(ShardId(1));
    job.cluster().Restart(ShardId(1));
  });
  EXPECT_GE(held, 20);
}

TEST(Drain, AClosedJobEndsAtOnce) {
  GatedJob job(0, Mode::kEager, /*logs=*/false);
  job.cluster().Send(ShardId(1), event::Drain{});
  EXPECT_THAT(job.TakeDrained(), ElementsAre(1));
  job.cluster().Crash(ShardId(1));
  job.cluster().Restart(ShardId(1));
  job.Finish([] {});
  for (const uint32_t shard : {2, 0, 1}) job.cluster().Send(ShardId(shard), event::Drain{});
  EXPECT_THAT(job.TakeDrained(), ElementsAre(2, 0, 1)) << "a finished job ends at once, too";
}

TEST(Drain, ANewTermEndsTheWait) {
  GatedJob job(0, Mode::kEager, /*logs=*/false);
  bool done = false;
  job.Finish([&] {
    if (done || !job.IsAt(2)) return;
    done = true;
    job.cluster().Send(ShardId(1), event::Drain{});
    EXPECT_THAT(job.TakeDrained(), IsEmpty());
    job.cluster().Crash(ShardId(2));
    job.cluster().Restart(ShardId(2));
    job.cluster().Run();
    EXPECT_THAT(job.TakeDrained(), ElementsAre(1)) << "all that it has is on disk";
    job.cluster().Crash(ShardId(1));
    job.cluster().Restart(ShardId(1));
  });
  EXPECT_EQ(job.Status().gates_size(), 0);
}

// ---------------------------------------------------------------- gates

TEST(Gates, AReturningShardLearnsTheGate) {
  for (const bool logs : {false, true}) {
    GatedJob job(3, Mode::kSealed, logs);
    bool set = false;
    StreamId call;
    int held = 0;
    job.Finish([&] {
      if (!set && job.IsAt(2)) {
        set = true;
        job.cluster().Crash(ShardId(1));
        call = job.Gate("driver", 3);
        job.cluster().Run();
        EXPECT_FALSE(job.Answered(call)) << "shard 1 is away";
        EXPECT_THAT(job.Status().ShortDebugString(), HasSubstr("shard 1 at shard-1"));
        job.cluster().Restart(ShardId(1));
        job.cluster().Run();
        // Without logs a new term begins, in which the caller has to look where the job is.
        EXPECT_EQ(job.Answered(call), logs);
        EXPECT_EQ(job.cluster().answers.closed.count(call), logs ? 0u : 1u);
      }
      if (!job.IsAt(4) || job.Status().gates_size() == 0) return;
      for (uint32_t s = 0; s < kShards; ++s) {
        EXPECT_THAT(job.Status(s).gates(0).holder(), "driver") << s;
      }
      if (++held == 20) job.Gate("driver", std::nullopt);
    });
    EXPECT_EQ(held, 20) << "it holds the job";
  }
}

TEST(Gates, ARecoveringJobNamesItsBorder) {
  GatedJob job(2, Mode::kEager, /*logs=*/false);
  std::optional<StreamId> call;
  bool cut = false;
  bool crashed = false;
  job.Finish([&] {
    if (!cut && job.IsAt(2)) {
      job.Gate("driver", 3);
      cut = true;
    }
    if (!crashed && job.IsAt(4)) {
      job.cluster().Run();  // every shard has the cut
      job.Gate("driver", std::nullopt);
      job.cluster().Crash(ShardId(1));
      job.cluster().Restart(ShardId(1));
      crashed = true;
      while (job.Status().state() != v1::JOB_STATE_RECOVERING && job.cluster().RunSome(1) > 0) {
      }
      ASSERT_EQ(job.Status().state(), v1::JOB_STATE_RECOVERING);
      call = job.Gate("driver", 1);
      job.cluster().Run();
      ASSERT_TRUE(job.Answered(*call));
      job.Gate("driver", std::nullopt);
    }
  });
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(std::get<v1::GateReply>(job.cluster().answers.replies[*call].front()).step(), 4u)
      << "the border that the job can still stop at, not the one that was asked for";
}

TEST(Gates, OnlyTheLeadTakesThem) {
  GatedJob job(0, Mode::kEager, /*logs=*/false);
  const StreamId call = job.cluster().NewStream();
  job.Finish([&] {
    if (!job.IsAt(2)) return;
    job.cluster().Send(ShardId(1), event::Gate{call, "driver", 2});
  });
  EXPECT_THAT(std::string(job.cluster().answers.closed.at(call).message()),
              HasSubstr("Gate: this is shard 1; ask shard 0, the lead, at shard-0"));
}

TEST(Gates, ALeadThatReturnsHasNone) {
  for (const bool logs : {false, true}) {
    GatedJob job(5, Mode::kEager, logs);
    bool set = false;
    job.Finish([&] {
      if (set || !job.IsAt(2)) return;
      set = true;
      job.Gate("driver", 2);
      job.cluster().Run();
      EXPECT_EQ(job.Status(2).gates_size(), 1);
      job.cluster().Crash(ShardId(0));
      job.cluster().Restart(ShardId(0));
      job.cluster().Run();
      for (uint32_t s = 0; s < kShards; ++s) EXPECT_EQ(job.Status(s).gates_size(), 0) << s;
    });
    EXPECT_TRUE(set);
  }
}

TEST(Gates, TheLowerOneHolds) {
  GatedJob job(7, Mode::kEager, /*logs=*/false);
  bool set = false;
  std::map<uint64_t, int> held;  // by open step
  job.Finish([&] {
    if (!set && job.IsAt(2)) {
      job.Gate("low", 3);
      job.Gate("high", 4);
      set = true;
    }
    if (!set || !job.cluster().IsUp(ShardId(0))) return;
    const uint64_t step = job.Status().step();
    if (++held[step] < 50) return;
    if (step == 4) job.Gate("low", std::nullopt);
    if (step == 5) job.Gate("high", std::nullopt);
  });
  EXPECT_GE(held[4], 50);
  EXPECT_GE(held[5], 50);
}

}  // namespace
}  // namespace eps
