#include "planner/simulator/test_scenarios.h"

#include <string>

#include "planner/simulator/draws.h"

namespace eps::planner::simulator {
namespace {

// Draws of one random scenario, one after the other.
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

StageLoad RandomStage(Dice* dice) {
  StageLoad stage;
  stage.fetch_forward = Bytes(dice->Between(0, 10));
  stage.fetch_backward = Bytes(dice->Between(0, 10));
  stage.push = Bytes(dice->Between(0, 10));
  stage.forward = Seconds(dice->Between(0, 1));
  stage.backward = Seconds(dice->Between(0, 3));
  stage.encode = Seconds(dice->Between(0, 1));
  stage.reduce = Seconds(dice->Between(0, 0.3));
  stage.update = Seconds(dice->Between(0, 1));
  return stage;
}

}  // namespace

Scenario ComputeOnly(size_t stages) {
  Scenario scenario;
  for (size_t i = 0; i < stages; ++i) {
    StageLoad stage;
    stage.name = "stage " + std::to_string(i);
    stage.forward = Seconds(1);
    stage.backward = Seconds(3);
    scenario.stages.push_back(stage);
  }
  scenario.steps = 1;
  return scenario;
}

Scenario WithBytes(size_t stages, double fetch, double push) {
  Scenario scenario = ComputeOnly(stages);
  for (StageLoad& stage : scenario.stages) {
    stage.fetch_forward = Bytes(fetch);
    stage.fetch_backward = Bytes(fetch);
    stage.push = Bytes(push);
  }
  scenario.stages.back().fetch_backward = Bytes(0);
  return scenario;
}

Scenario LargeRun() {
  constexpr size_t kStages = 128;
  constexpr double kParameters = 1e12 / kStages;
  constexpr double kBytes = 2 * kParameters;  // bf16, both ways
  constexpr BytesPerSecond kWorkerLink(50e9);
  constexpr BytesPerSecond kServerLink(100e9);
  Scenario scenario = WithBytes(kStages, kBytes, kBytes);
  for (StageLoad& stage : scenario.stages) {
    stage.parameters = static_cast<uint64_t>(kParameters);
    // 6,400 tokens of a worker at 4e14 operations per second.
    stage.forward = Seconds(2 * kParameters * 6400 / 4e14);
    stage.backward = 3 * stage.forward;
    stage.encode = Seconds(kParameters / 2e9);
    stage.reduce = Seconds(kParameters / 50e9);
    stage.update = Seconds(kParameters / 1e9);
  }
  scenario.workers = 10'000;
  scenario.servers = 5'000;
  scenario.worker_receive = scenario.worker_send = kWorkerLink;
  scenario.server_receive = scenario.server_send = kServerLink;
  scenario.slow_fraction = 0.001;
  scenario.slow_factor = 1.3;
  scenario.jitter = 0.05;
  scenario.cut_steps = 5;
  scenario.cut = Seconds(5);
  scenario.worker_restart = Seconds(120);
  scenario.server_restart = Seconds(300);
  scenario.worker_failures = kFailureLogs[0].per_worker();
  scenario.server_failures = kFailureLogs[0].per_worker();
  scenario.tokens_per_step = 64e6;
  scenario.steps = 1000;
  return scenario;
}

Scenario RandomScenario(uint64_t seed) {
  Dice dice(seed);
  Scenario scenario;
  const uint32_t stages = dice.Number(1, 8);
  for (uint32_t i = 0; i < stages; ++i) scenario.stages.push_back(RandomStage(&dice));
  scenario.workers = dice.Number(1, 9);
  scenario.servers = dice.Number(1, 4);
  scenario.parts = dice.Number(0, 12);
  scenario.worker_receive = BytesPerSecond(dice.Between(1, 40));
  scenario.worker_send = BytesPerSecond(dice.Between(1, 40));
  scenario.server_receive = BytesPerSecond(dice.Between(1, 100));
  scenario.server_send = BytesPerSecond(dice.Between(1, 100));
  scenario.prefetch = dice.Number(0, 3);
  scenario.mode = dice.Chance(0.5) ? UpdateMode::kEager : UpdateMode::kSealed;
  constexpr Replay kReplays[] = {Replay::kRollback, Replay::kFrontier, Replay::kLog};
  scenario.replay = kReplays[dice.Number(0, 2)];
  scenario.cut_steps = dice.Number(1, 10);
  scenario.cut = Seconds(dice.Between(0, 10));
  scenario.worker_restart = Seconds(dice.Between(0, 100));
  scenario.server_restart = Seconds(dice.Between(0, 100));
  scenario.worker_failures = PerSecond(dice.Between(0, 2e-3) / scenario.workers);
  scenario.server_failures = PerSecond(dice.Between(0, 2e-3) / scenario.servers);
  if (dice.Chance(0.5)) scenario.slow_fraction = dice.Between(0, 0.5);
  scenario.slow_factor = dice.Between(1, 2);
  if (dice.Chance(0.5)) scenario.jitter = dice.Between(0, 0.3);
  scenario.steps = 60;
  scenario.seed = seed;
  return scenario;
}

}  // namespace eps::planner::simulator
