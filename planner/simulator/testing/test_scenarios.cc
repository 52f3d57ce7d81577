#include "planner/simulator/testing/test_scenarios.h"

#include <string>

#include "planner/hardware.h"
#include "planner/simulator/draws.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner::simulator {
namespace {

// The sequence of draws for one random scenario.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}

  double Between(double low, double high) {
    return low + (high - low) * UniformDraw(seed_, kPurpose, 0, next_++);
  }
  uint32_t Number(uint32_t low, uint32_t high) {
    return static_cast<uint32_t>(Between(low, high + 1.0));
  }
  bool Chance(double probability) { return Between(0, 1) < probability; }

 private:
  static constexpr auto kPurpose = static_cast<DrawPurpose>(1000);
  const uint64_t seed_;
  uint64_t next_ = 0;
};

StageWork RandomStage(Dice* dice) {
  StageWork stage;
  stage.elements = dice->Number(1, 10);
  stage.chunks = dice->Number(1, 4);
  stage.fetch_forward = Bytes(dice->Between(0, 10));
  stage.fetch_backward = Bytes(dice->Between(0, 10));
  stage.push = Bytes(dice->Between(0, 10));
  if (dice->Chance(0.3)) stage.residual = Bytes(dice->Between(0, 5));
  stage.forward = Flops(dice->Between(0, 1));
  stage.backward = Flops(dice->Between(0, 3));
  stage.stash = Bytes(dice->Between(0, 20));
  return stage;
}

}  // namespace

WorkerKind& WorkerOf(Scenario* scenario) { return scenario->hardware.workers.front(); }
ServerKind& ServerOf(Scenario* scenario) { return scenario->hardware.servers.front(); }

Scenario ComputeOnly(size_t stages) {
  Scenario scenario;
  for (size_t i = 0; i < stages; ++i) {
    StageWork stage;
    stage.name = "stage " + std::to_string(i);
    stage.elements = 1;
    stage.forward = Flops(1);
    stage.backward = Flops(3);
    scenario.work.stages.push_back(stage);
  }
  scenario.work.parameters = stages;
  WorkerKind worker;
  worker.device.peak_fp32 = FlopsPerSecond(1);
  worker.receive = worker.send = worker.encode = worker.decode = kNoLimit;
  scenario.hardware.workers.push_back(worker);
  ServerKind server;
  server.receive = server.send = server.encode = server.update = server.memory_bandwidth = kNoLimit;
  scenario.hardware.servers.push_back(server);
  scenario.shape.weights = "bf16";  // FP32 weights would be copied, not encoded
  scenario.shape.jit_depth = 0;
  scenario.steps = 1;
  return scenario;
}

Scenario WithBytes(size_t stages, double fetch, double push) {
  Scenario scenario = ComputeOnly(stages);
  for (StageWork& stage : scenario.work.stages) {
    stage.fetch_forward = Bytes(fetch);
    stage.fetch_backward = Bytes(fetch);
    stage.push = Bytes(push);
  }
  scenario.work.stages.back().fetch_backward = Bytes(0);
  return scenario;
}

Scenario LargeRun() {
  constexpr size_t kStages = 128;
  constexpr double kParameters = 1e12 / kStages;
  constexpr double kBytes = 2 * kParameters;  // bf16 in both directions
  Scenario scenario = WithBytes(kStages, kBytes, kBytes);
  scenario.SetWorkers(10'000);
  scenario.SetServers(5'000);
  for (StageWork& stage : scenario.work.stages) {
    stage.elements = static_cast<uint64_t>(kParameters);
    stage.forward = Flops(2 * kParameters * 6400);  // 6400 tokens per worker
    stage.backward = 3 * stage.forward;
  }
  scenario.work.parameters = 1'000'000'000'000;
  scenario.work.state_per_parameter = Bytes(12);
  scenario.work.tokens = 64'000'000;
  WorkerKind& worker = WorkerOf(&scenario);
  worker.device.peak_fp32 = FlopsPerSecond(4e14);
  worker.receive = worker.send = BytesPerSecond(50e9);
  ServerKind& server = ServerOf(&scenario);
  server.receive = server.send = BytesPerSecond(100e9);
  server.memory_bandwidth = BytesPerSecond(400e9);
  server.encode = BytesPerSecond(8e9);
  server.update = BytesPerSecond(200e9);
  scenario.slow_fraction = 0.001;
  scenario.slow_factor = 1.3;
  scenario.jitter = 0.05;
  scenario.cut_steps = 5;
  scenario.cut = Seconds(5);
  scenario.worker_restart = Seconds(120);
  scenario.server_restart = Seconds(300);
  scenario.worker_failures = kFailureLogs[0].per_worker();
  scenario.server_failures = kFailureLogs[0].per_worker();
  scenario.steps = 1000;
  return scenario;
}

Scenario RandomScenario(uint64_t seed) {
  Dice dice(seed);
  Scenario scenario = ComputeOnly(0);
  const uint32_t stages = dice.Number(1, 8);
  for (uint32_t i = 0; i < stages; ++i) scenario.work.stages.push_back(RandomStage(&dice));
  scenario.shape.workers = dice.Number(1, 9);
  scenario.work.parts = dice.Chance(0.5) ? scenario.shape.workers : dice.Number(1, 12);
  scenario.SetServers(dice.Number(1, 4));
  const auto rate = [&dice](double most) { return BytesPerSecond(dice.Between(0.1 * most, most)); };
  // Half of these resources take no time.
  const auto rate_if_any = [&](double most) { return dice.Chance(0.5) ? rate(most) : kNoLimit; };
  WorkerKind& worker = WorkerOf(&scenario);
  worker.receive = rate(40);
  worker.send = rate(40);
  worker.encode = rate_if_any(200);
  worker.decode = rate_if_any(200);
  worker.device.to_device = rate_if_any(200);
  worker.device.from_device = rate_if_any(200);
  if (dice.Chance(0.5)) worker.latency = Seconds(dice.Between(0, 0.2));
  worker.transport = rate_if_any(40);
  if (dice.Chance(0.5)) worker.chunk_overhead = Seconds(dice.Between(0, 0.1));
  worker.device.host = dice.Chance(0.3);
  scenario.hardware.one_machine = dice.Chance(0.5);
  ServerKind& server = ServerOf(&scenario);
  server.receive = rate(100);
  server.send = rate(100);
  server.encode = rate(200);
  server.update = rate(200);
  server.memory_bandwidth = rate_if_any(2000);
  server.transport = rate_if_any(40);
  if (dice.Chance(0.5)) server.chunk_overhead = Seconds(dice.Between(0, 0.1));
  scenario.work.state_per_parameter = Bytes(12);
  server.storage.emplace();
  server.storage->read = rate(1000);
  server.storage->write = rate(1000);
  scenario.shape.state_on_disk = dice.Chance(0.3);
  scenario.shape.log = dice.Chance(0.3);
  scenario.shape.stash_on_device = dice.Chance(0.3) ? 1 : 0;
  scenario.shape.prefetch = static_cast<int>(dice.Number(0, 3));
  scenario.shape.jit_depth = static_cast<int>(dice.Number(0, 2));
  scenario.work.sealed = dice.Chance(0.5);
  constexpr Replay kReplays[] = {Replay::kRollback, Replay::kFrontier, Replay::kLog};
  scenario.replay = kReplays[dice.Number(0, 2)];
  scenario.cut_steps = dice.Number(1, 10);
  scenario.cut = Seconds(dice.Between(0, 10));
  scenario.worker_restart = Seconds(dice.Between(0, 100));
  scenario.server_restart = Seconds(dice.Between(0, 100));
  scenario.worker_failures = PerSecond(dice.Between(0, 2e-3) / scenario.shape.workers);
  scenario.server_failures = PerSecond(dice.Between(0, 2e-3) / scenario.shape.servers);
  if (dice.Chance(0.5)) scenario.slow_fraction = dice.Between(0, 0.5);
  scenario.slow_factor = dice.Between(1, 2);
  if (dice.Chance(0.5)) scenario.jitter = dice.Between(0, 0.3);
  scenario.steps = 60;
  scenario.seed = seed;
  worker.device.codes = dice.Chance(0.3);
  return scenario;
}

}  // namespace eps::planner::simulator
