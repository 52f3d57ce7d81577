// More of anything good never makes a run longer, over random scenarios with fixed seeds.

#include <cstdint>
#include <functional>

#include "gtest/gtest.h"
#include "planner/simulator/simulator.h"
#include "planner/simulator/test_scenarios.h"

namespace eps::planner::simulator {
namespace {

constexpr uint64_t kScenarios = 3000;
constexpr double kRounding = 1e-9;

struct Improvement {
  const char* what;
  std::function<void(Scenario*)> make;
  bool fewer_failures = false;  // the useful time stays, so goodput as a ratio does not fall either
};

void ScaleStages(Seconds StageLoad::*field, double factor, Scenario* scenario) {
  for (StageLoad& stage : scenario->stages) stage.*field = factor * stage.*field;
}

const Improvement kImprovements[] = {
    {"worker receive", [](Scenario* s) { s->worker_receive = 1.5 * s->worker_receive; }},
    {"worker send", [](Scenario* s) { s->worker_send = 1.5 * s->worker_send; }},
    {"server receive", [](Scenario* s) { s->server_receive = 1.5 * s->server_receive; }},
    {"server send", [](Scenario* s) { s->server_send = 1.5 * s->server_send; }},
    // As many failures in all.
    {"servers",
     [](Scenario* s) {
       s->servers *= 2;
       s->server_failures = s->server_failures / 2;
     }},
    {"prefetch", [](Scenario* s) { ++s->prefetch; }},
    {"forward", [](Scenario* s) { ScaleStages(&StageLoad::forward, 0.7, s); }},
    {"backward", [](Scenario* s) { ScaleStages(&StageLoad::backward, 0.7, s); }},
    {"encode", [](Scenario* s) { ScaleStages(&StageLoad::encode, 0.7, s); }},
    {"reduce", [](Scenario* s) { ScaleStages(&StageLoad::reduce, 0.7, s); }},
    {"update", [](Scenario* s) { ScaleStages(&StageLoad::update, 0.7, s); }},
    {"slow workers", [](Scenario* s) { s->slow_factor = 1; }},
    {"worker failures", [](Scenario* s) { s->worker_failures = 0.6 * s->worker_failures; }, true},
    {"server failures", [](Scenario* s) { s->server_failures = 0.6 * s->server_failures; }, true},
    {"no failures", [](Scenario* s) { s->worker_failures = s->server_failures = PerSecond(0); },
     true},
    {"worker restart", [](Scenario* s) { s->worker_restart = 0.5 * s->worker_restart; }, true},
    {"server restart", [](Scenario* s) { s->server_restart = 0.5 * s->server_restart; }, true},
};

TEST(Monotone, BetterPartsNeverMakeARunLonger) {
  uint64_t failures = 0;
  for (uint64_t seed = 0; seed < kScenarios; ++seed) {
    Scenario scenario = RandomScenario(seed);
    // The exception that simulator.h names.
    if (scenario.mode == UpdateMode::kSealed && scenario.replay == Replay::kLog) {
      scenario.worker_failures = PerSecond(0);
    }
    const auto before = Simulate(scenario);
    ASSERT_TRUE(before.ok()) << before.status();
    failures += before->worker_failures + before->server_failures;
    for (const Improvement& improvement : kImprovements) {
      Scenario better = scenario;
      improvement.make(&better);
      const auto after = Simulate(better);
      ASSERT_TRUE(after.ok()) << after.status();
      EXPECT_LE(after->wall.value(), before->wall.value() * (1 + kRounding))
          << "seed " << seed << ", better " << improvement.what;
      if (improvement.fewer_failures) {
        EXPECT_GE(after->goodput(), before->goodput() * (1 - kRounding))
            << "seed " << seed << ", better " << improvement.what;
      }
    }
  }
  EXPECT_GT(failures, 2 * kScenarios);  // or the property was tested on runs without any
}

}  // namespace
}  // namespace eps::planner::simulator
