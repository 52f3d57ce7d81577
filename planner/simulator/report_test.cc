#include "planner/simulator/report.h"

#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/simulator/testing/test_scenarios.h"

namespace eps::planner::simulator {
namespace {

// Two steps of 8 s with a cut of 4 s after each.
Scenario SmallRun() {
  Scenario scenario = ComputeOnly(2);
  scenario.work.parameters = 1'000'000;
  scenario.steps = 2;
  scenario.cut_steps = 1;
  scenario.cut = Seconds(4);
  scenario.work.tokens = 60;
  scenario.membership = {{Seconds(1), 1}};
  return scenario;
}

TEST(SimulationReport, TextDividesTheTime) {
  const Scenario scenario = SmallRun();
  const auto result = Simulate(scenario);
  ASSERT_TRUE(result.ok());
  const std::string text = SimulationToText(scenario, *result);
  for (const char* line :
       {"2 stages of 1e+06 parameters, 1 workers, 1 servers, 1 parts, eager, rollback\n",
        "2 steps in 24 s, 300 steps per hour, 5 tokens per second\n",
        "an undisturbed step takes 8 s; its bottleneck: worker compute\n", "goodput 66.67 %",
        "waiting for cuts           33.33 %  8 s\n", "worker compute             44.44 %\n",
        "0 workers and 0 servers failed; 0 rollbacks, 0 steps repeated\n",
        "the first 1 of 1 events:\n", "12.0 s  step 1        workers changed to 2\n"}) {
    EXPECT_TRUE(absl::StrContains(text, line)) << line << "\nin\n" << text;
  }
}

TEST(SimulationReport, JsonHasTheSameFigures) {
  Scenario scenario = SmallRun();
  const auto result = Simulate(scenario);
  ASSERT_TRUE(result.ok());
  const auto json = nlohmann::json::parse(SimulationToJson(scenario, *result));
  EXPECT_EQ(json["steps"], 2);
  EXPECT_EQ(json["parameters"], 1'000'000);
  EXPECT_EQ(json["wall"], 24);
  EXPECT_EQ(json["useful"], 16);
  EXPECT_EQ(json["cuts"], 8);
  EXPECT_EQ(json["lost"], 0);
  EXPECT_EQ(json["tokens_per_second"], 5);
  EXPECT_EQ(json["bottleneck"], "worker compute");
  EXPECT_EQ(json["step"]["duration"], 8);
  EXPECT_EQ(json["step"]["busiest"]["worker compute"], 8);
  EXPECT_EQ(json["utilization"].size(), 1u) << "nothing else is used";
  ASSERT_EQ(json["events"].size(), 1u);
  EXPECT_EQ(json["events"][0]["kind"], "workers changed");
  EXPECT_EQ(json["events"][0]["at"], 12);
  scenario.work.tokens = 0;
  const auto unknown = Simulate(scenario);
  ASSERT_TRUE(unknown.ok());
  EXPECT_TRUE(
      nlohmann::json::parse(SimulationToJson(scenario, *unknown))["tokens_per_second"].is_null());
}

}  // namespace
}  // namespace eps::planner::simulator
