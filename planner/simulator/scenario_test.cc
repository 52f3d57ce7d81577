#include "planner/simulator/scenario.h"

#include <functional>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "planner/simulator/test_scenarios.h"

namespace eps::planner::simulator {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Scenario, AcceptsWhatTheTestsUse) {
  EXPECT_TRUE(ComputeOnly(3).Validate().ok());
  EXPECT_TRUE(LargeRun().Validate().ok());
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_TRUE(RandomScenario(seed).Validate().ok()) << RandomScenario(seed).Validate();
  }
}

TEST(Scenario, RefusesWithTheFieldAndWhatWasFound) {
  struct Case {
    std::function<void(Scenario*)> break_it;
    const char* field;
    const char* found;
  };
  const Case cases[] = {
      {[](Scenario* s) { s->stages.clear(); }, "stages:", "found 0"},
      {[](Scenario* s) { s->stages[1].push = Bytes(-1); }, "stages[1].push:", "found -1"},
      {[](Scenario* s) { s->stages[0].fetch_forward = Bytes(kNaN); },
       "stages[0].fetch_forward:", "found nan"},
      {[](Scenario* s) { s->stages[2].backward = Seconds(kInfinity); },
       "stages[2].backward:", "found inf"},
      {[](Scenario* s) { s->stages[2].update = Seconds(-3); }, "stages[2].update:", "found -3"},
      {[](Scenario* s) { s->workers = 0; }, "workers:", "found 0"},
      {[](Scenario* s) { s->servers = 0; }, "servers:", "found 0"},
      {[](Scenario* s) { s->worker_send = BytesPerSecond(0); }, "worker_send:", "found 0"},
      {[](Scenario* s) { s->server_receive = BytesPerSecond(kNaN); },
       "server_receive:", "found nan"},
      {[](Scenario* s) { s->cut = Seconds(-2); }, "cut:", "found -2"},
      {[](Scenario* s) { s->server_restart = Seconds(kInfinity); }, "server_restart:", "found inf"},
      {[](Scenario* s) { s->worker_failures = PerSecond(-1); }, "worker_failures:", "found -1"},
      {[](Scenario* s) { s->slow_fraction = 1.5; }, "slow_fraction:", "found 1.5"},
      {[](Scenario* s) { s->slow_factor = 0.5; }, "slow_factor:", "found 0.5"},
      {[](Scenario* s) { s->jitter = 4; }, "jitter:", "found 4"},
      {[](Scenario* s) { s->tokens_per_step = -7; }, "tokens_per_step:", "found -7"},
      {[](Scenario* s) {
         s->membership = {{Seconds(5), -1}};
       },
       "membership[0].workers:", "found 0"},
      {[](Scenario* s) {
         s->membership = {{Seconds(5), 1}, {Seconds(4), 1}};
       },
       "membership[1].at:", "found 4"},
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

TEST(Scenario, CountsPartsAndWorkers) {
  Scenario scenario = ComputeOnly(1);
  scenario.workers = 4;
  EXPECT_EQ(scenario.part_count(), 4u);
  scenario.parts = 9;
  EXPECT_EQ(scenario.part_count(), 9u);
  scenario.membership = {{Seconds(1), 3}, {Seconds(2), -5}, {Seconds(3), 4}};
  EXPECT_EQ(scenario.most_workers(), 7u);
}

// By hand: 419 interruptions in 54 days are one in 3.09 hours, as the report says ("every three
// hours").
TEST(FailureLogs, GiveTheRatesOfTheirRuns) {
  const double hours = 1 / (16384 * kFailureLogs[0].per_worker().value()) / 3600;
  EXPECT_NEAR(hours, 3.09, 0.01);
  EXPECT_NEAR(24 * 3600 * 992 * kFailureLogs[1].per_worker().value(), 35.0 / 60, 1e-12);
  EXPECT_NEAR(7 * 24 * 3600 * 384 * kFailureLogs[2].per_worker().value(), 1.5, 1e-12);
}

}  // namespace
}  // namespace eps::planner::simulator
