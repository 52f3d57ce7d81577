#include "planner/simulator/step_model.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "planner/simulator/test_scenarios.h"

namespace eps::planner::simulator {
namespace {

constexpr double kClose = 1e-9;

StepTimes Undisturbed(const Scenario& scenario) {
  const StepModel model(scenario);
  return model.Run(model.Classes(scenario.workers), scenario.workers);
}
double StepSeconds(const Scenario& scenario) { return Undisturbed(scenario).duration.value(); }

// n (forward + backward), for both modes and any look-ahead.
TEST(StepModel, WithNothingToWaitForTakesItsCompute) {
  for (const uint32_t prefetch : {0, 1, 5}) {
    for (const UpdateMode mode : {UpdateMode::kEager, UpdateMode::kSealed}) {
      Scenario scenario = WithBytes(5, 1e9, 1e9);  // links without limit
      scenario.prefetch = prefetch;
      scenario.mode = mode;
      EXPECT_NEAR(StepSeconds(scenario), 5 * (1 + 3), kClose);
    }
  }
  EXPECT_EQ(Undisturbed(ComputeOnly(5)).forward, Seconds(5));
  EXPECT_EQ(Undisturbed(ComputeOnly(5)).bottleneck(), Resource::kWorkerCompute);
}

// 2 n - 1 fetches, one behind the other, at the worker's link or its share of the servers'.
TEST(StepModel, BoundByFetchesTakesAllBytesOverTheRate) {
  Scenario scenario = WithBytes(6, 100, 0);
  for (StageLoad& stage : scenario.stages) stage.forward = stage.backward = Seconds(0);
  scenario.worker_receive = BytesPerSecond(10);
  EXPECT_NEAR(StepSeconds(scenario), 11 * 100 / 10.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kWorkerReceive);

  scenario.workers = 8;
  scenario.servers = 2;
  scenario.server_send = BytesPerSecond(20);  // 2 * 20 / 8 = 5 for each worker
  EXPECT_NEAR(StepSeconds(scenario), 11 * 100 / 5.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerSend);
}

TEST(StepModel, BoundByPushesTakesAllGradientsOverTheRate) {
  Scenario scenario = WithBytes(6, 0, 100);
  for (StageLoad& stage : scenario.stages) stage.forward = stage.backward = Seconds(0);
  scenario.workers = 3;
  scenario.parts = 6;  // 2 on each worker
  scenario.worker_send = BytesPerSecond(10);
  EXPECT_NEAR(StepSeconds(scenario), 6 * 2 * 100 / 10.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kWorkerSend);
  scenario.server_receive = BytesPerSecond(15);  // 5 for each worker
  EXPECT_NEAR(StepSeconds(scenario), 6 * 2 * 100 / 5.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerReceive);
}

// Two buffers: each visit takes the longer of its compute and a fetch, but for the first fetch, or
// for the last visit's compute.
TEST(StepModel, TwoBuffersHideTheShorterOfComputeAndFetch) {
  constexpr size_t kStages = 7;
  Scenario scenario = WithBytes(kStages, 1, 0);
  for (StageLoad& stage : scenario.stages) stage.backward = Seconds(1);
  scenario.worker_receive = BytesPerSecond(1 / 0.8);  // shorter than a pass
  EXPECT_NEAR(StepSeconds(scenario), 0.8 + 2 * kStages * 1, kClose);
  scenario.worker_receive = BytesPerSecond(1 / 2.5);  // longer than the two passes of the turn
  EXPECT_NEAR(StepSeconds(scenario), (2 * kStages - 1) * 2.5 + 1, kClose);
}

// L2L section 3 with 2 N - 1 transfers: N (4 u C + 2 X) - X without overlap; N = 24, C = X = 10 ms.
TEST(StepModel, WithOneBufferIsTheSerialRelayOfL2l) {
  for (const double micro_batches : {1, 2, 4, 10}) {
    Scenario scenario = WithBytes(24, 100e6, 0);
    for (StageLoad& stage : scenario.stages) {
      stage.forward = Seconds(micro_batches * 0.010);
      stage.backward = Seconds(3 * micro_batches * 0.010);
    }
    scenario.worker_receive = BytesPerSecond(10e9);
    scenario.prefetch = 0;
    EXPECT_NEAR(StepSeconds(scenario), 24 * (4 * micro_batches * 0.010 + 2 * 0.010) - 0.010,
                kClose);
  }
}

// One stage: nothing overlaps, and each term has its divisor.
TEST(StepModel, AddsUpAllThatAStageNeeds) {
  Scenario scenario = WithBytes(1, 300, 70);
  StageLoad& stage = scenario.stages[0];
  stage.encode = Seconds(10);
  stage.reduce = Seconds(4);
  stage.update = Seconds(6);
  scenario.workers = 3;
  scenario.parts = 6;
  scenario.servers = 2;
  scenario.worker_receive = BytesPerSecond(100);
  scenario.worker_send = BytesPerSecond(7);
  const double expected =
      10 / 2.0 + 300 / 100.0 + 2 * (1 + 3) + 2 * 70 / 7.0 + 6 * 4 / 2.0 + 6 / 2.0;
  for (const UpdateMode mode : {UpdateMode::kEager, UpdateMode::kSealed}) {
    scenario.mode = mode;
    EXPECT_NEAR(StepSeconds(scenario), expected, kClose);
  }
}

// The updates of the step before go on while the first stages compute; eager ones while the last
// ones do, and only the first stage's is waited for.
TEST(StepModel, HidesUpdatesBehindTheComputeOfOtherStages) {
  Scenario scenario = WithBytes(4, 1, 0);
  for (StageLoad& stage : scenario.stages) stage.update = Seconds(0.5);
  for (const UpdateMode mode : {UpdateMode::kEager, UpdateMode::kSealed}) {
    scenario.mode = mode;
    EXPECT_NEAR(StepSeconds(scenario), 4 * 4 + 0.5, kClose);
  }
  // Too slow to hide: sealed stages come one update apart, eager ones are done one update apart.
  for (StageLoad& stage : scenario.stages) stage.update = Seconds(5);
  scenario.mode = UpdateMode::kSealed;
  EXPECT_NEAR(StepSeconds(scenario), 4 * 5 + 1 + 4 * 3, kClose);
  scenario.mode = UpdateMode::kEager;
  EXPECT_NEAR(StepSeconds(scenario), 4 * 1 + 3 + 4 * 5, kClose);
  // Nobody waits for a stage that nobody fetches, but it is updated before anything is reduced.
  scenario = ComputeOnly(1);
  scenario.mode = UpdateMode::kSealed;
  scenario.stages[0].update = Seconds(10);
  scenario.stages[0].reduce = Seconds(2);
  EXPECT_NEAR(StepSeconds(scenario), 10 + 2, kClose);
}

// By hand, one buffer, two stages, encoding 1 s, backward 2 s, reduction 5 s: encode 0-1, forward
// 1-2, encode 2-3, turn 3-6; the reduction begins at 6 and stands still while the weights of the
// way down are encoded, 6-7, so it ends at 12; backward 7-9; the other reduction 12-17.
TEST(StepModel, EncodesBeforeItReduces) {
  Scenario scenario = WithBytes(2, 1, 1);
  for (StageLoad& stage : scenario.stages) {
    stage.backward = Seconds(2);
    stage.encode = Seconds(1);
    stage.reduce = Seconds(5);
  }
  scenario.prefetch = 0;
  EXPECT_NEAR(StepSeconds(scenario), 17, kClose);
  EXPECT_NEAR(Undisturbed(scenario).busiest[5].value(), 3 * 1 + 2 * 5, kClose);
}

// One gradient is sent while the next is computed, not more.
TEST(StepModel, WaitsForTheMemoryOfGradients) {
  Scenario scenario = ComputeOnly(4);  // forward 4 s, backward 3 s each
  scenario.stages[3].push = Bytes(100);
  scenario.worker_send = BytesPerSecond(10);
  // Turn until 7, sent until 17; stage 2 until 10; stages 1 and 0 from 17 on.
  EXPECT_NEAR(StepSeconds(scenario), 17 + 3 + 3, kClose);
}

TEST(StepModel, WaitsForTheSlowestWorker) {
  Scenario scenario = ComputeOnly(5);
  scenario.workers = 8;
  scenario.slow_fraction = 0.25;
  scenario.slow_factor = 2;
  const StepTimes times = Undisturbed(scenario);
  EXPECT_NEAR(times.duration.value(), 2 * 5 * 4, kClose);
  EXPECT_NEAR(times.busy[0].value(), (6 * 1 + 2 * 2) / 8.0 * 20, kClose);
}

TEST(StepModel, DealsPartsEvenlyAndToSlowWorkersLast) {
  Scenario scenario = ComputeOnly(1);
  scenario.workers = 8;
  scenario.parts = 11;
  scenario.slow_fraction = 0.25;
  scenario.slow_factor = 3;
  const StepModel model(scenario);
  struct Expected {
    uint32_t members;
    std::string classes;
  };
  const Expected cases[] = {{8, "3x2@1 3x1@1 2x1@3 "},
                            {11, "8x1@1 3x1@3 "},
                            {13, "10x1@1 1x1@3 "},
                            {4, "3x3@1 1x2@3 "},
                            {1, "1x11@1 "}};
  for (const Expected& expected : cases) {
    std::string classes;
    for (const WorkerClass& c : model.Classes(expected.members)) {
      classes += std::to_string(c.workers) + "x" + std::to_string(c.parts) + "@" +
                 std::to_string(static_cast<int>(c.slowdown)) + " ";
    }
    EXPECT_EQ(classes, expected.classes) << expected.members;
  }
}

// With many workers a step takes as long as the slowest of them: for 1,000 standard normal draws
// the mean of the largest is 3.241 (Tippett 1925).
TEST(StepModel, DrawsTheSlowestOfManyWorkers) {
  constexpr double kSigma = 0.01;  // small: exp(x) - 1 is nearly x
  Scenario scenario = ComputeOnly(1);
  scenario.workers = 1000;
  scenario.jitter = kSigma;
  const StepModel model(scenario);
  const auto classes = model.Classes(scenario.workers);
  double sum = 0;
  constexpr uint64_t kSteps = 4000;
  for (uint64_t step = 0; step < kSteps; ++step) {
    sum += model.Run(model.Disturbed(classes, step), scenario.workers).duration.value() / 4 - 1;
  }
  EXPECT_NEAR(sum / kSteps / kSigma, 3.241, 0.08);
}

// Whatever is scarce, no step is shorter than what its busiest machine has to do.
TEST(StepModel, IsNeverFasterThanAnySingleBound) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Scenario scenario = RandomScenario(seed);
    const StepModel model(scenario);
    const auto classes = model.Classes(scenario.workers);
    for (const auto& workers : {classes, model.Disturbed(classes, seed)}) {
      const StepTimes times = model.Run(workers, scenario.workers);
      for (size_t r = 0; r < kResourceCount; ++r) {
        EXPECT_GE(times.duration.value(), times.busiest[r].value() * (1 - kClose))
            << seed << " " << ResourceName(static_cast<Resource>(r));
        EXPECT_LE(times.busy[r].value(), times.busiest[r].value() * (1 + kClose)) << seed;
      }
      EXPECT_LE(times.forward, times.duration) << seed;
    }
  }
}

}  // namespace
}  // namespace eps::planner::simulator
