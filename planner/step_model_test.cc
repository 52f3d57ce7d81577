#include "planner/step_model.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "planner/hardware.h"
#include "planner/simulator/draws.h"
#include "planner/simulator/scenario.h"
#include "planner/simulator/testing/test_scenarios.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner {
namespace {

using simulator::ComputeOnly;
using simulator::Disturbed;
using simulator::kFp32;
using simulator::RandomScenario;
using simulator::Scenario;
using simulator::ServerOf;
using simulator::WithBytes;
using simulator::WorkerOf;

constexpr double kClose = 1e-9;

StepModel ModelOf(const Scenario& scenario) {
  return StepModel(scenario.work, scenario.hardware, scenario.hardware.workers.front(),
                   scenario.shape);
}
std::vector<WorkerClass> ClassesOf(const Scenario& scenario) {
  const uint32_t workers = scenario.shape.workers;
  const auto slow = static_cast<uint32_t>(std::lround(scenario.slow_fraction * workers));
  return DealParts(workers, scenario.work.parts, slow, scenario.slow_factor);
}
StepTimes Undisturbed(const Scenario& scenario) {
  return ModelOf(scenario).Run(ClassesOf(scenario), scenario.shape.workers);
}
double StepSeconds(const Scenario& scenario) { return Undisturbed(scenario).duration.value(); }

// n (forward + backward), in both modes and with any look-ahead.
TEST(StepModel, UnlimitedLinksLeaveOnlyTheCompute) {
  for (const int prefetch : {0, 1, 5}) {
    for (const bool sealed : {false, true}) {
      Scenario scenario = WithBytes(5, 1e9, 1e9);  // links without a limit
      scenario.shape.prefetch = prefetch;
      scenario.work.sealed = sealed;
      EXPECT_NEAR(StepSeconds(scenario), 5 * (1 + 3), kClose);
    }
  }
  EXPECT_EQ(Undisturbed(ComputeOnly(5)).forward, Seconds(5));
  EXPECT_EQ(Undisturbed(ComputeOnly(5)).bottleneck(), Resource::kWorkerCompute);
}

// 2 n - 1 fetches in sequence, at the rate of the worker's link or of its share of the servers'
// links.
TEST(StepModel, FetchesCanBoundTheStep) {
  Scenario scenario = WithBytes(6, 100, 0);
  for (StageWork& stage : scenario.work.stages) stage.forward = stage.backward = Flops(0);
  WorkerOf(&scenario).receive = BytesPerSecond(10);
  EXPECT_NEAR(StepSeconds(scenario), 11 * 100 / 10.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kWorkerReceive);

  scenario.SetWorkers(8);
  scenario.SetServers(2);
  ServerOf(&scenario).send = BytesPerSecond(20);  // 2 * 20 / 8 = 5 for each worker
  EXPECT_NEAR(StepSeconds(scenario), 11 * 100 / 5.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerSend);
}

TEST(StepModel, PushesCanBoundTheStep) {
  Scenario scenario = WithBytes(6, 0, 100);
  for (StageWork& stage : scenario.work.stages) stage.forward = stage.backward = Flops(0);
  scenario.shape.workers = 3;
  scenario.work.parts = 6;  // two on each worker
  WorkerOf(&scenario).send = BytesPerSecond(10);
  EXPECT_NEAR(StepSeconds(scenario), 6 * 2 * 100 / 10.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kWorkerSend);
  ServerOf(&scenario).receive = BytesPerSecond(15);  // 5 for each worker
  EXPECT_NEAR(StepSeconds(scenario), 6 * 2 * 100 / 5.0, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerReceive);
}

// The time that a core spends on sending and receiving, where it exceeds the time of the link.
TEST(StepModel, TransportCanBoundTheStep) {
  Scenario scenario = WithBytes(6, 100, 0);
  for (StageWork& stage : scenario.work.stages) {
    stage.forward = stage.backward = Flops(0);
    stage.chunks = 3;
  }
  WorkerOf(&scenario).transport = BytesPerSecond(10);
  WorkerOf(&scenario).chunk_overhead = Seconds(2);
  // Pushes, whose chunks have no bytes here, overlap the fetches; only the last one remains.
  EXPECT_NEAR(StepSeconds(scenario), 11 * (100 / 10.0 + 3 * 2) + 3 * 2, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kWorkerReceive);
  scenario.SetServers(2);  // one core for each server's stream
  EXPECT_NEAR(StepSeconds(scenario), (11 * (100 / 10.0 + 3 * 2) + 3 * 2) / 2, kClose);

  // All cores of two servers, for eight workers.
  scenario.SetWorkers(8);
  ServerOf(&scenario).cores = 4;
  ServerOf(&scenario).transport = BytesPerSecond(5);
  ServerOf(&scenario).chunk_overhead = Seconds(3);
  EXPECT_NEAR(StepSeconds(scenario), (11 * (100 / 5.0 + 3 * 3) + 3 * 3) * 8 / (2 * 4), kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerSend);
}

// The passes take all cores; everything else that the worker and the server do runs in sequence on
// one core.
TEST(StepModel, SharedCoresAddUpAllWork) {
  Scenario scenario = WithBytes(3, 20, 10);
  for (StageWork& stage : scenario.work.stages) stage.chunks = 2;
  WorkerKind& worker = WorkerOf(&scenario);
  worker.device.host = true;
  worker.decode = BytesPerSecond(8);
  worker.encode = BytesPerSecond(16);
  worker.transport = BytesPerSecond(4);
  worker.chunk_overhead = Seconds(0.5);
  ServerKind& server = ServerOf(&scenario);
  server.cores = 2;
  server.transport = BytesPerSecond(5);
  server.chunk_overhead = Seconds(0.25);
  server.update = BytesPerSecond(2);
  const double fetched = 5 * 20;
  const double pushed = 3 * 10;
  const double on_worker = (fetched + pushed) / 4 + (5 + 3) * 2 * 0.5;
  const double on_server = (fetched + pushed) / 5 + (5 + 3) * 2 * 0.25;
  const double kernels = 5 * 4 / 8.0 + 3 * 4 / 16.0 + 3 * 4 / 2.0;
  EXPECT_EQ(Undisturbed(scenario).busiest_of(Resource::kSharedCores), Seconds(0));
  scenario.hardware.one_machine = true;
  EXPECT_NEAR(Undisturbed(scenario).busiest_of(Resource::kSharedCores).value(),
              3 * (1 + 3) + on_worker + on_server + kernels, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kSharedCores);
}

// With two buffers, each visit takes the longer of its compute and a fetch, except for the first
// fetch or for the last visit's compute.
TEST(StepModel, TwoBuffersOverlapComputeAndFetch) {
  constexpr size_t kStages = 7;
  Scenario scenario = WithBytes(kStages, 1, 0);
  for (StageWork& stage : scenario.work.stages) stage.backward = Flops(1);
  WorkerOf(&scenario).receive = BytesPerSecond(1 / 0.8);  // a fetch is shorter than a pass
  EXPECT_NEAR(StepSeconds(scenario), 0.8 + 2 * kStages * 1, kClose);
  // A fetch is longer than the two passes of the turn.
  WorkerOf(&scenario).receive = BytesPerSecond(1 / 2.5);
  EXPECT_NEAR(StepSeconds(scenario), (2 * kStages - 1) * 2.5 + 1, kClose);
}

// L2L section 3 with 2 N - 1 transfers: N (4 u C + 2 X) - X without overlap; N = 24, C = X = 10 ms.
TEST(StepModel, OneBufferGivesTheSerialRelay) {
  for (const double micro_batches : {1, 2, 4, 10}) {
    Scenario scenario = WithBytes(24, 100e6, 0);
    for (StageWork& stage : scenario.work.stages) {
      stage.forward = Flops(micro_batches * 0.010);
      stage.backward = Flops(3 * micro_batches * 0.010);
    }
    WorkerOf(&scenario).receive = BytesPerSecond(10e9);
    scenario.shape.prefetch = 0;
    EXPECT_NEAR(StepSeconds(scenario), 24 * (4 * micro_batches * 0.010 + 2 * 0.010) - 0.010,
                kClose);
  }
}

// With one stage nothing overlaps, and each term has its own divisor.
TEST(StepModel, OneStageAddsUpAllTerms) {
  Scenario scenario = WithBytes(1, 300, 70);
  ServerOf(&scenario).encode = kFp32 / Seconds(10);
  ServerOf(&scenario).update = kFp32 / Seconds(4);
  scenario.shape.workers = 3;
  scenario.work.parts = 6;
  scenario.SetServers(2);
  WorkerOf(&scenario).receive = BytesPerSecond(100);
  WorkerOf(&scenario).send = BytesPerSecond(7);
  WorkerOf(&scenario).latency = Seconds(0.5);
  WorkerOf(&scenario).decode = kFp32 / Seconds(7);
  WorkerOf(&scenario).encode = kFp32 / Seconds(8);
  WorkerOf(&scenario).device.to_device = kFp32 / Seconds(9);
  WorkerOf(&scenario).device.from_device = kFp32 / Seconds(11);
  scenario.work.stages[0].stash = kFp32;
  const double on_worker =
      7 + 9 + 2 * 11 /* the stash returns at the slower rate */ + 2 * (1 + 3) + 2 * 11 + 2 * 8;
  const double expected =
      10 / 2.0 + 0.5 + 300 / 100.0 + on_worker + 2 * 70 / 7.0 + 0.5 + 6 * 4 / 2.0;
  EXPECT_NEAR(StepSeconds(scenario), expected, kClose);
  scenario.work.sealed = true;  // the decision is sent to the worker
  EXPECT_NEAR(StepSeconds(scenario), expected + 0.5, kClose);
}

// Updates of the previous step overlap the first stages' compute; eager updates overlap the last
// stages' compute, and only the first stage's update delays the step.
TEST(StepModel, ComputeHidesUpdatesOfOtherStages) {
  Scenario scenario = WithBytes(4, 1, 0);
  ServerOf(&scenario).update = kFp32 / Seconds(0.5);
  for (const bool sealed : {false, true}) {
    scenario.work.sealed = sealed;
    EXPECT_NEAR(StepSeconds(scenario), 4 * 4 + 0.5, kClose);
  }
  // Too slow to hide: sealed stages start one update apart, eager stages finish one update apart.
  ServerOf(&scenario).update = kFp32 / Seconds(5);
  scenario.work.sealed = true;
  EXPECT_NEAR(StepSeconds(scenario), 4 * 5 + 1 + 4 * 3, kClose);
  scenario.work.sealed = false;
  EXPECT_NEAR(StepSeconds(scenario), 4 * 1 + 3 + 4 * 5, kClose);
}

// The state of a stage streams through the disks while the stage is updated.
TEST(StepModel, WaitsForDisksBesideTheProcessors) {
  Scenario scenario = WithBytes(4, 1, 0);
  scenario.shape.state_on_disk = true;
  scenario.work.state_per_parameter = Bytes(12);
  ServerOf(&scenario).update = kFp32 / Seconds(2);
  ServerOf(&scenario).storage.emplace();
  ServerOf(&scenario).storage->read = Bytes(12) / Seconds(3);
  ServerOf(&scenario).storage->write = Bytes(12) / Seconds(4);
  // Weights are read in 1 s before every visit. Eager: the turn ends at 8; two of these reads
  // interrupt the stream before it ends. Sealed: each stage is read after its stream, which brings
  // the gradient in 1 s more; the last gradient is written in 4/3 s at the end.
  EXPECT_NEAR(StepSeconds(scenario), 8 + 4 * 7 + 2, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerDisks);
  EXPECT_NEAR(Undisturbed(scenario).busiest_of(Resource::kServerDisks).value(), 4 * 7 + 7 * 1,
              kClose);
  scenario.work.sealed = true;
  EXPECT_NEAR(StepSeconds(scenario), 4 * (7 + 1 + 1) + 4 + 3 * 3 + 4 / 3.0, kClose);
}

// A gradient occupies memory until it is logged, and the last one must be logged before the step
// ends.
TEST(StepModel, WaitsForTheLog) {
  Scenario scenario = WithBytes(4, 1, 0);
  scenario.work.stages[3].push = Bytes(10);
  scenario.shape.log = true;
  ServerOf(&scenario).storage.emplace();
  ServerOf(&scenario).storage->write = BytesPerSecond(1);
  ServerOf(&scenario).storage->sync = Seconds(0.5);
  // The turn takes 3-7 and is logged until 17.5; stage 2 takes until 10; stages 1 and 0 run from
  // 17.5 on.
  EXPECT_NEAR(StepSeconds(scenario), 17.5 + 3 + 3 + 0.5, kClose);
  for (StageWork& stage : scenario.work.stages) stage.push = Bytes(10);
  EXPECT_NEAR(StepSeconds(scenario), 7 + 4 * 10 + 0.5, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerDisks);
}

// A cut is written during the step that follows it, and the stage that is updated next is written
// next.
TEST(StepModel, ACutDelaysUpdatesOfUnwrittenStages) {
  Scenario scenario = WithBytes(3, 1, 0);
  scenario.shape.durable = true;
  scenario.work.state_per_parameter = Bytes(12);
  ServerOf(&scenario).update = kFp32 / Seconds(1);
  ServerOf(&scenario).storage.emplace();
  const auto behind_cut = [&](double seconds_of_a_stage) {
    ServerOf(&scenario).storage->write = Bytes(12) / Seconds(seconds_of_a_stage);
    return ModelOf(scenario).Run(ClassesOf(scenario), 1, true).duration.value();
  };
  EXPECT_NEAR(StepSeconds(scenario), 3 * 4 + 1, kClose);
  EXPECT_NEAR(behind_cut(4), 3 * 4 + 1, kClose) << "written at 4, 8, 12; wanted at 6, 9, 12";
  EXPECT_NEAR(behind_cut(7), 3 * 7 + 1, kClose) << "the first stage's last";
  scenario.work.sealed = true;
  EXPECT_NEAR(behind_cut(7), 3 * 7, kClose) << "before the decision";
}

// Sealed: a stage is reduced once all parts have arrived, but not updated before the decision.
TEST(StepModel, ReducesBeforeTheDecisionUpdatesAfterIt) {
  Scenario scenario = WithBytes(1, 1, 0);
  scenario.SetWorkers(5);
  ServerOf(&scenario).memory_bandwidth = BytesPerSecond(2);
  scenario.work.stages[0].push = Bytes(3);
  scenario.work.state_per_parameter = Bytes(20);
  scenario.work.stages[0].fetch_forward = Bytes(0);
  // Encoding reads FP32 weights in 2 s. Eager: reducing takes 3 s for each of 4 parts, the update
  // 23 s. Sealed: reducing takes 3 s for each of 5 parts and writes the sum in 2 s, the update 22
  // s.
  EXPECT_NEAR(StepSeconds(scenario), 2 + 4 + 4 * 3 + 23, kClose);
  scenario.work.sealed = true;
  EXPECT_NEAR(StepSeconds(scenario), 2 + 4 + 5 * 3 + 2 + 22, kClose);
  EXPECT_EQ(Undisturbed(scenario).bottleneck(), Resource::kServerMemory);
  // Two stages by hand. Eager: encode 0-2-4-6, forward 2-3, turn 4-8, reduction and update until
  // 43, backward 8-11, reduction and update until 78. Sealed: update 0-22, encode 22-24, forward
  // 24-25, update 24-46, encode 46-48-50, turn 48-52, backward 52-55, reductions until 69 and 86.
  scenario.work.stages.push_back(scenario.work.stages[0]);
  EXPECT_NEAR(StepSeconds(scenario), 86, kClose);
  EXPECT_NEAR(Undisturbed(scenario).forward.value(), 49, kClose);
  scenario.work.sealed = false;
  EXPECT_NEAR(StepSeconds(scenario), 78, kClose);
  EXPECT_NEAR(Undisturbed(scenario).forward.value(), 5, kClose);
}

// A sealed server keeps a single gradient as it came, which its update reads in 1.5 s.
TEST(StepModel, OneSealedPartIsNotSummed) {
  Scenario scenario = WithBytes(1, 1, 3);
  ServerOf(&scenario).memory_bandwidth = BytesPerSecond(2);
  scenario.work.state_per_parameter = Bytes(20);
  scenario.work.stages[0].fetch_forward = Bytes(0);
  scenario.work.sealed = true;
  EXPECT_NEAR(StepSeconds(scenario), 2 + 4 + 3 + 20 + 1.5, kClose);
}

// The cores and the memory of the servers are resources of their own; a step waits for the slower
// one in each activity.
TEST(StepModel, TellsServerCoresFromTheirMemory) {
  Scenario scenario = WithBytes(1, 1, 3);
  scenario.work.state_per_parameter = Bytes(20);
  ServerOf(&scenario).memory_bandwidth = BytesPerSecond(2);  // encoding 3 s, the update 23 s
  ServerOf(&scenario).encode = kFp32 / Seconds(5);
  ServerOf(&scenario).update = kFp32 / Seconds(11);
  const StepTimes times = Undisturbed(scenario);
  EXPECT_NEAR(times.duration.value(), 5 + 4 + 23, kClose);
  EXPECT_NEAR(times.busiest_of(Resource::kServerProcessors).value(), 5 + 11, kClose);
  EXPECT_NEAR(times.busiest_of(Resource::kServerMemory).value(), 3 + 23, kClose);
  EXPECT_NEAR(times.serving.value(), 5 + 23, kClose);
}

// By hand, with one buffer, two stages, encoding 1 s, backward 2 s, reduction 5 s: encode 0-1,
// forward 1-2, encode 2-3, turn 3-6. The reduction begins at 6 and pauses while the weights of the
// way down are encoded, 6-7, so it ends at 12; backward 7-9; the other reduction 12-17.
TEST(StepModel, EncodesBeforeItReduces) {
  Scenario scenario = WithBytes(2, 1, 1);
  for (StageWork& stage : scenario.work.stages) stage.backward = Flops(2);
  ServerOf(&scenario).encode = kFp32 / Seconds(1);
  ServerOf(&scenario).update = kFp32 / Seconds(5);
  scenario.shape.prefetch = 0;
  EXPECT_NEAR(StepSeconds(scenario), 17, kClose);
  EXPECT_NEAR(Undisturbed(scenario).busiest_of(Resource::kServerProcessors).value(), 3 * 1 + 2 * 5,
              kClose);
}

// As above, but the backward pass of stage 0 needs no weights: it follows the turn, 6-8; the
// reductions take 6-11 and 11-16. Neither the link nor its latency delays it.
TEST(StepModel, WeightsThatNobodyFetchesTakeNoTime) {
  Scenario scenario = WithBytes(2, 1, 1);
  for (StageWork& stage : scenario.work.stages) stage.backward = Flops(2);
  scenario.work.stages[0].fetch_backward = Bytes(0);
  ServerOf(&scenario).encode = kFp32 / Seconds(1);
  ServerOf(&scenario).update = kFp32 / Seconds(5);
  scenario.shape.prefetch = 0;
  EXPECT_NEAR(StepSeconds(scenario), 16, kClose);
  EXPECT_NEAR(Undisturbed(scenario).busiest_of(Resource::kServerProcessors).value(), 2 * 1 + 2 * 5,
              kClose);
  const double without = StepSeconds(scenario);
  WorkerOf(&scenario).latency = Seconds(1);
  // Two fetches, and the last gradient's way to the servers, which reduces the turn's meanwhile.
  EXPECT_NEAR(StepSeconds(scenario), without + 3, kClose);
}

// One gradient is sent while the next is computed, but no more than one.
TEST(StepModel, WaitsForTheMemoryOfGradients) {
  Scenario scenario = ComputeOnly(4);  // forward 4 s in total, backward 3 s per stage
  scenario.work.stages[3].push = Bytes(100);
  WorkerOf(&scenario).send = BytesPerSecond(10);
  // The turn ends at 7 and its gradient is sent until 17; stage 2 ends at 10; stages 1 and 0 run
  // from 17 on.
  EXPECT_NEAR(StepSeconds(scenario), 17 + 3 + 3, kClose);
}

TEST(StepModel, WaitsForTheSlowestWorker) {
  Scenario scenario = ComputeOnly(5);
  scenario.SetWorkers(8);
  scenario.slow_fraction = 0.25;
  scenario.slow_factor = 2;
  const StepTimes times = Undisturbed(scenario);
  EXPECT_NEAR(times.duration.value(), 2 * 5 * 4, kClose);
  EXPECT_NEAR(times.busy[0].value(), (6 * 1 + 2 * 2) / 8.0 * 20, kClose);
}

TEST(StepModel, DealsPartsToSlowWorkersLast) {
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
    const auto slow = static_cast<uint32_t>(std::lround(0.25 * expected.members));
    for (const WorkerClass& c : DealParts(expected.members, 11, slow, 3)) {
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
  scenario.SetWorkers(1000);
  const StepModel model = ModelOf(scenario);
  double sum = 0;
  constexpr uint64_t kSteps = 4000;
  for (uint64_t step = 0; step < kSteps; ++step) {
    sum +=
        model.Run(Disturbed(ClassesOf(scenario), kSigma, 0, step), 1000).duration.value() / 4 - 1;
  }
  EXPECT_NEAR(sum / kSteps / kSigma, 3.241, 0.08);
}

// No step is shorter than the work of its busiest machine, whatever is scarce.
TEST(StepModel, IsNeverFasterThanAnySingleBound) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Scenario scenario = RandomScenario(seed);
    const StepModel model = ModelOf(scenario);
    const auto classes = ClassesOf(scenario);
    for (const auto& workers : {classes, Disturbed(classes, scenario.jitter, seed, 0)}) {
      const StepTimes times = model.Run(workers, scenario.shape.workers);
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
}  // namespace eps::planner
