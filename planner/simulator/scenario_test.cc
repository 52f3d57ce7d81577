#include "planner/simulator/scenario.h"

#include <functional>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "planner/simulator/testing/test_scenarios.h"

namespace eps::planner::simulator {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Scenario, AcceptsTheTestScenarios) {
  EXPECT_TRUE(ComputeOnly(3).Validate().ok());
  EXPECT_TRUE(LargeRun().Validate().ok());
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_TRUE(RandomScenario(seed).Validate().ok()) << RandomScenario(seed).Validate();
  }
}

TEST(Scenario, RefusalsNameTheFieldAndTheValue) {
  struct Case {
    std::function<void(Scenario*)> break_it;
    const char* field;
    const char* found;
  };
  const Case cases[] = {
      {[](Scenario* s) { s->work.stages.clear(); }, "stages:", "found 0"},
      {[](Scenario* s) { s->work.parts = 0; }, "parts:", "found 0"},
      {[](Scenario* s) { s->SetWorkers(0); }, "workers:", "found 0"},
      {[](Scenario* s) { s->shape.servers = 0; }, "servers:", "found 0"},
      {[](Scenario* s) { s->duration = Seconds(kNaN); }, "duration:", "found nan"},
      {[](Scenario* s) { s->cut = Seconds(-2); }, "cut:", "found -2"},
      {[](Scenario* s) { s->server_restart = Seconds(kInfinity); }, "server_restart:", "found inf"},
      {[](Scenario* s) { s->worker_failures = PerSecond(-1); }, "worker_failures:", "found -1"},
      {[](Scenario* s) { s->slow_fraction = 1.5; }, "slow_fraction:", "found 1.5"},
      {[](Scenario* s) { s->slow_factor = 0.5; }, "slow_factor:", "found 0.5"},
      {[](Scenario* s) { s->jitter = 4; }, "jitter:", "found 4"},
      {[](Scenario* s) {
         s->membership = {{Seconds(5), -1}};
       },
       "membership[0].workers:", "found 0"},
      {[](Scenario* s) {
         s->membership = {{Seconds(5), 1}, {Seconds(4), 1}};
       },
       "membership[1].at:", "found 4"},
      {[](Scenario* s) {
         s->deaths = {{Seconds(5), true}, {Seconds(4), false}};
       },
       "deaths[1].at:", "found 4"},
      {[](Scenario* s) { s->steps = 0; }, "steps, duration:", "found 0 and 0"},
  };
  for (const Case& c : cases) {
    Scenario scenario = ComputeOnly(3);
    c.break_it(&scenario);
    const absl::Status status = scenario.Validate();
    const std::string message(status.message());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_TRUE(absl::StartsWith(message, c.field)) << message;
    EXPECT_TRUE(absl::StrContains(message, ": expected ")) << message;
    EXPECT_TRUE(absl::EndsWith(message, c.found)) << message;
  }
}

TEST(Scenario, CountsWorkersAndMachines) {
  Scenario scenario = ComputeOnly(1);
  scenario.work.tokens = 60;
  scenario.SetWorkers(4);
  EXPECT_EQ(scenario.work.parts, 4u);
  EXPECT_EQ(scenario.work.tokens, 240u);
  scenario.membership = {{Seconds(1), 3}, {Seconds(2), -5}, {Seconds(3), 4}};
  EXPECT_EQ(scenario.most_workers(), 7u);
  scenario.SetServers(3);
  EXPECT_EQ(scenario.hardware.server_count(), 3u);
  scenario.hardware.one_machine = scenario.hardware.workers[0].device.host = true;
  scenario.SetServers(2);
  EXPECT_EQ(scenario.shape.servers, 2u);
  EXPECT_EQ(scenario.hardware.server_count(), 3u) << "only the number of processes changes";
}

// By hand: 419 interruptions in 54 days are one in 3.09 hours; the Llama 3 report says "every three
// hours".
TEST(FailureLogs, GiveTheRatesOfTheirRuns) {
  const double hours = 1 / (16384 * kFailureLogs[0].per_worker().value()) / 3600;
  EXPECT_NEAR(hours, 3.09, 0.01);
  EXPECT_NEAR(24 * 3600 * 992 * kFailureLogs[1].per_worker().value(), 35.0 / 60, 1e-12);
  EXPECT_NEAR(7 * 24 * 3600 * 384 * kFailureLogs[2].per_worker().value(), 1.5, 1e-12);
}

}  // namespace
}  // namespace eps::planner::simulator
