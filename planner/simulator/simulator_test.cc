#include "planner/simulator/simulator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "planner/simulator/testing/test_scenarios.h"
#include "planner/step_model.h"
#include "planner/units.h"

namespace eps::planner::simulator {
namespace {

constexpr double kClose = 1e-6;
constexpr auto kProcessors = static_cast<size_t>(Resource::kServerProcessors);

SimulationResult MustSimulate(const Scenario& scenario) {
  const auto result = Simulate(scenario);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : SimulationResult();
}

// Steps of 4 stages with 16 s of compute (4 s forward) and 1 s of server work, and a cut every 5
// steps.
Scenario WithCuts() {
  Scenario scenario = WithBytes(4, 1, 1);
  ServerOf(&scenario).update = kFp32 / Seconds(0.25);
  scenario.steps = 40;
  scenario.cut_steps = 5;
  scenario.cut = Seconds(2);
  scenario.worker_restart = Seconds(7);
  scenario.server_restart = Seconds(11);
  return scenario;
}
constexpr double kStep = 16.25;  // a step waits for the first stage's update
constexpr double kForward = 4;
constexpr double kCycle = 5 * kStep + 2;

// The run of the first seed with exactly one failure, and the time of that failure.
struct OneFailure {
  SimulationResult result;
  double at;         // time of the failure
  double since_cut;  // training since the last cut
  double in_step;    // time in the step; from kStep on, in the cut after it
};
OneFailure RunWithOneFailure(Scenario scenario, uint64_t seed) {
  for (scenario.seed = seed;; scenario.seed += 1000) {
    const SimulationResult result = MustSimulate(scenario);
    if (result.worker_failures + result.server_failures != 1) continue;
    const double at = result.events[0].at.value();
    const double since_cut = std::fmod(at, kCycle);
    const double in_step = since_cut - std::min(4.0, std::floor(since_cut / kStep)) * kStep;
    return {result, at, since_cut, in_step};
  }
}
constexpr PerSecond kAboutOne(1 / 700.0);
constexpr double kUndisturbed = 40 * kStep + 8 * 2;

TEST(Simulator, WithoutFailuresAddsUpStepsAndCuts) {
  Scenario scenario = WithCuts();
  scenario.work.tokens = 1000;
  const SimulationResult result = MustSimulate(scenario);
  EXPECT_EQ(result.steps, 40u);
  EXPECT_NEAR(result.step.duration.value(), kStep, kClose);
  EXPECT_NEAR(result.step.forward.value(), kForward, kClose);
  EXPECT_NEAR(result.wall.value(), kUndisturbed, kClose);
  EXPECT_NEAR(result.goodput(), 40 * kStep / kUndisturbed, kClose);
  EXPECT_NEAR(result.tokens_per_second, 40 * 1000 / kUndisturbed, kClose);
  EXPECT_NEAR(result.utilization[0], 40 * 16 / kUndisturbed, kClose);
  EXPECT_NEAR(result.utilization[kProcessors], 40 * 1 / kUndisturbed, kClose);
  EXPECT_EQ(result.event_count, 0u);
}

TEST(Simulator, RollbackLosesWorkSinceTheCut) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Scenario scenario = WithCuts();
    scenario.worker_failures = kAboutOne;
    const OneFailure run = RunWithOneFailure(scenario, seed);
    EXPECT_NEAR(run.result.lost.value(), run.since_cut, kClose);
    EXPECT_EQ(run.result.lost_steps,
              static_cast<uint64_t>(std::min(4.0, std::floor(run.since_cut / kStep))));
    EXPECT_EQ(run.result.rollbacks, 1u);
    EXPECT_NEAR(run.result.wall.value(), kUndisturbed + 7 + run.since_cut, kClose);
    EXPECT_NEAR(run.result.worst_recovery.value(), 7 + run.since_cut, kClose);
  }
}

TEST(Simulator, ADeadWorkerRestartsASealedStep) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Scenario scenario = WithCuts();
    scenario.work.sealed = true;
    scenario.worker_failures = kAboutOne;
    const OneFailure run = RunWithOneFailure(scenario, seed);
    // During a cut there is nothing to repeat.
    const double again = run.in_step < kStep ? run.in_step : 0;
    EXPECT_EQ(run.result.rollbacks, 0u);
    EXPECT_NEAR(run.result.lost.value(), again, kClose);
    EXPECT_NEAR(run.result.wall.value(), kUndisturbed + 7 + again, kClose);
    EXPECT_NEAR(run.result.mean_recovery.value(), 7 + again, kClose);
  }
}

TEST(Simulator, AFrontierRepeatsOnlyTheForwardPass) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Scenario scenario = WithCuts();
    scenario.replay = Replay::kFrontier;
    scenario.worker_failures = kAboutOne;
    const OneFailure run = RunWithOneFailure(scenario, seed);
    const double again = run.in_step < kStep ? std::min(run.in_step, kForward) : 0;
    EXPECT_EQ(run.result.rollbacks, 0u);
    EXPECT_NEAR(run.result.wall.value(), kUndisturbed + 7 + again, kClose);
    EXPECT_NEAR(run.result.worst_recovery.value(), 7 + again, kClose);
  }
}

TEST(Simulator, ADeadServerReplaysItsLog) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Scenario scenario = WithCuts();
    scenario.replay = Replay::kLog;
    scenario.server_failures = kAboutOne;
    const OneFailure run = RunWithOneFailure(scenario, seed);
    // One and a half of seven visits, not beyond the step.
    const double ahead = std::min(1.5 / 7 * kStep, std::max(0.0, kStep - run.in_step));
    // The processors work 1 s in a step of 16.25 s and do not work in the cut.
    const double replay = std::min(run.since_cut + ahead, 5 * kStep) / kStep * 1;
    EXPECT_EQ(run.result.rollbacks, 0u);
    EXPECT_EQ(run.result.lost, Seconds(0));
    EXPECT_NEAR(run.result.wall.value(), kUndisturbed + 11 - ahead + replay, kClose);
    EXPECT_NEAR(run.result.down.value(), 11 - ahead + replay, kClose);
    EXPECT_NEAR(run.result.worst_recovery.value(), 11 + replay, kClose);
  }
}

TEST(Simulator, GivenDeathsHappenOnTime) {
  Scenario scenario = WithCuts();
  // In the eighth step, 2.5 steps after a cut; the other death is in a later cycle.
  scenario.deaths = {{Seconds(kCycle + 2.5 * kStep), true}, {Seconds(400), false}};
  const SimulationResult result = MustSimulate(scenario);
  ASSERT_GE(result.events.size(), 4u);
  EXPECT_EQ(result.events[0].at, scenario.deaths[0].at);
  EXPECT_EQ(result.events[0].kind, EventKind::kWorkerFailed);
  EXPECT_EQ(result.events[0].step, 7u);
  EXPECT_EQ(result.events[3].at, scenario.deaths[1].at);
  EXPECT_EQ(result.events[3].kind, EventKind::kServerFailed);
  EXPECT_EQ(result.rollbacks, 2u);
  const double since_cut = std::fmod(400 - 7 - 2.5 * kStep, kCycle);
  EXPECT_NEAR(result.lost.value(), 2.5 * kStep + since_cut, kClose);
  EXPECT_NEAR(result.wall.value(), kUndisturbed + 7 + 11 + 2.5 * kStep + since_cut, kClose);
  // Given deaths also happen in addition to random ones.
  scenario.worker_failures = kAboutOne;
  EXPECT_GE(MustSimulate(scenario).worker_failures, 1u);
  EXPECT_EQ(MustSimulate(scenario).server_failures, 1u);
}

// The outcome depends on who dies: a frontier does not help a server, nor a log a worker of an
// eager step.
TEST(Simulator, OtherDeathsRollBack) {
  Scenario scenario = WithCuts();
  scenario.replay = Replay::kFrontier;
  scenario.server_failures = kAboutOne;
  EXPECT_EQ(RunWithOneFailure(scenario, 0).result.rollbacks, 1u);
  scenario.work.sealed = true;
  EXPECT_EQ(RunWithOneFailure(scenario, 0).result.rollbacks, 1u);
  scenario = WithCuts();
  scenario.replay = Replay::kLog;
  scenario.worker_failures = kAboutOne;
  EXPECT_EQ(RunWithOneFailure(scenario, 0).result.rollbacks, 1u);
}

// Server failures with a mean time of M between them, cuts of C after every T of work, restarts of
// R.
struct Expectation {
  double mean_time_to_failure, cut, work, restart;
};
double SimulatedGoodput(const Expectation& e) {
  Scenario scenario = ComputeOnly(1);
  scenario.work.stages[0].forward = Flops(0);
  scenario.work.stages[0].backward = Flops(1);
  scenario.cut_steps = static_cast<uint64_t>(e.work);
  scenario.cut = Seconds(e.cut);
  scenario.server_restart = Seconds(e.restart);
  scenario.server_failures = PerSecond(1 / e.mean_time_to_failure);
  scenario.steps = 3'000'000;
  return MustSimulate(scenario).goodput();
}

// Wall time for work W: M e^(R/M) (e^((T+C)/M) - 1) W / T (Daly, "A higher order estimate of the
// optimum checkpoint interval for restart dumps", FGCS 22, 2006: exponential failures, also during
// a restart). To first order in 1/M the goodput is 1 - C/T - (T/2 + R)/M, largest at
// T = sqrt(2 C M) (Young, "A first order approximation to the optimum checkpoint interval", CACM
// 17, 1974).
TEST(Simulator, AgreesWithYoungAndDaly) {
  const Expectation cases[] = {
      {1000, 5, 100, 20}, {1000, 5, 30, 20}, {5000, 10, 300, 100}, {300, 5, 200, 50}};
  for (const Expectation& e : cases) {
    const double m = e.mean_time_to_failure;
    const double daly =
        e.work / (m * std::exp(e.restart / m) * (std::exp((e.work + e.cut) / m) - 1));
    EXPECT_NEAR(SimulatedGoodput(e) / daly, 1, 0.015) << m << " " << e.work;
  }
  const Expectation rare = {20'000, 10, 632, 100};  // sqrt(2 * 10 * 20000) = 632
  const double young =
      1 - rare.cut / rare.work - (rare.work / 2 + rare.restart) / rare.mean_time_to_failure;
  const double best = SimulatedGoodput(rare);
  EXPECT_NEAR(best / young, 1, 0.02);
  for (const double factor : {0.25, 4.0}) {
    Expectation other = rare;
    other.work *= factor;
    EXPECT_LT(SimulatedGoodput(other), best) << factor;
  }
}

TEST(Simulator, AccountsForAllTime) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Scenario scenario = RandomScenario(seed);
    if (seed % 2 == 0) scenario.duration = Seconds(300);
    if (seed % 3 == 0) {
      scenario.membership = {{Seconds(50), 3}, {Seconds(90), -3}, {Seconds(91), 1}};
    }
    const SimulationResult r = MustSimulate(scenario);
    const Seconds sum = r.useful + r.cuts + r.lost + r.down + r.unfinished;
    EXPECT_NEAR(sum.value() / r.wall.value(), 1, kClose) << seed;
    EXPECT_LE(r.recoveries, r.worker_failures + r.server_failures);
    EXPECT_LE(r.mean_recovery.value(), r.worst_recovery.value() * (1 + kClose));
    for (const double used : r.utilization) {
      EXPECT_GE(used, 0) << seed;
      EXPECT_LE(used, 1 + kClose) << seed;
    }
    for (const Seconds part : {r.useful, r.cuts, r.lost, r.down, r.unfinished}) {
      EXPECT_GE(part.value(), -kClose) << seed;
    }
  }
}

TEST(Simulator, EndsAfterItsDuration) {
  Scenario scenario = WithCuts();
  scenario.duration = Seconds(kCycle + 20);
  const SimulationResult result = MustSimulate(scenario);
  EXPECT_EQ(result.steps, 6u);
  EXPECT_EQ(result.wall, scenario.duration);
  EXPECT_NEAR(result.unfinished.value(), 20 - kStep, kClose);
}

// 8 parts of 4 s: a step takes 8 s on 4 workers, 16 s on 2 and 12 s on 3.
TEST(Simulator, DealsPartsAgainWhenWorkersChange) {
  Scenario scenario = ComputeOnly(1);
  scenario.shape.workers = 4;
  scenario.work.parts = 8;
  scenario.steps = 6;
  scenario.membership = {{Seconds(9), -2}, {Seconds(40), 1}};
  // 0-8-16 with 4, 16-32-48 with 2, 48-60-72 with 3.
  const SimulationResult result = MustSimulate(scenario);
  EXPECT_NEAR(result.wall.value(), 72, kClose);
  ASSERT_EQ(result.events.size(), 2u);
  EXPECT_EQ(result.events[0].kind, EventKind::kWorkersChanged);
  EXPECT_NEAR(result.events[0].at.value(), 16, kClose);
  EXPECT_EQ(result.events[0].workers, 2u);
  EXPECT_NEAR(result.events[1].at.value(), 48, kClose);
  EXPECT_EQ(result.events[1].workers, 3u);
  EXPECT_EQ(result.events[1].step, 4u);
  // 8 parts of 4 s in each of 6 steps, over the time of the workers present.
  EXPECT_NEAR(result.utilization[0], 6 * 8 * 4 / (16.0 * 4 + 32 * 2 + 24 * 3), kClose);
}

TEST(Simulator, RecordsEvents) {
  Scenario scenario = WithCuts();
  scenario.worker_failures = PerSecond(1 / 100.0);
  scenario.max_events = 5;
  const SimulationResult result = MustSimulate(scenario);
  ASSERT_EQ(result.events.size(), 5u);
  EXPECT_GT(result.event_count, 5u);
  EXPECT_EQ(result.events[0].kind, EventKind::kWorkerFailed);
  EXPECT_EQ(result.events[1].kind, EventKind::kRolledBack);
  EXPECT_EQ(result.events[1].step % 5, 0u);
  for (size_t i = 1; i < result.events.size(); ++i) {
    EXPECT_LE(result.events[i - 1].at, result.events[i].at);
  }
}

TEST(Simulator, RepeatsARunBySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Scenario scenario = RandomScenario(seed);
    scenario.jitter = 0.1;
    const SimulationResult first = MustSimulate(scenario);
    EXPECT_EQ(first.wall, MustSimulate(scenario).wall);
    scenario.seed += 1000;
    EXPECT_NE(first.wall, MustSimulate(scenario).wall);
  }
  // Bit-identical on any machine.
  Scenario pinned = RandomScenario(1);
  pinned.jitter = 0.1;
  const double wall = MustSimulate(pinned).wall.value();
  EXPECT_EQ(wall, 0x1.f6b7e0372bcd1p+9) << absl::StrFormat("%a", wall);
}

TEST(Simulator, RefusesImpossibleRuns) {
  Scenario scenario = ComputeOnly(2);
  scenario.shape.workers = 0;
  EXPECT_EQ(Simulate(scenario).status().code(), absl::StatusCode::kInvalidArgument);
  scenario = ComputeOnly(1);
  scenario.work.stages[0].forward = scenario.work.stages[0].backward = Flops(0);
  EXPECT_TRUE(absl::StartsWith(Simulate(scenario).status().message(), "stages: expected"));
  scenario = ComputeOnly(2);
  scenario.server_failures = PerSecond(10);
  scenario.server_restart = Seconds(5);
  EXPECT_EQ(Simulate(scenario).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Simulator, RunsTenThousandWorkers) {
  const auto start = std::chrono::steady_clock::now();
  const SimulationResult result = MustSimulate(LargeRun());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << "step " << result.step.duration.value() << " s, bottleneck "
            << ResourceName(result.bottleneck()) << ", goodput " << result.goodput() << ", "
            << result.worker_failures + result.server_failures << " failures; simulated in "
            << took.count() << " s\n";
  EXPECT_EQ(result.steps, 1000u);
  EXPECT_GT(result.worker_failures, 3u);
  EXPECT_GT(result.goodput(), 0.5);
}

}  // namespace
}  // namespace eps::planner::simulator
