#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/config/command_line.h"
#include "base/config/config.h"
#include "base/exit_code.h"
#include "base/job/job_spec.h"
#include "base/testing/test_specs.h"
#include "cli/commands/simulate.h"
#include "cli/launch/plan_check.h"
#include "cli/launch/planned_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/hardware.h"
#include "planner/plan.h"
#include "planner/simulator/scenario.h"
#include "planner/simulator/simulator.h"
#include "planner/units.h"

namespace eps {

absl::Status RunPlan(const std::vector<std::string>& arguments);  // plan.cc

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The output of a command, and its status.
struct Printed {
  absl::Status status;
  std::string text;
};
Printed Capture(absl::Status (*command)(const std::vector<std::string>&),
                const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  Printed printed;
  printed.status = command(arguments);
  std::fflush(stdout);
  printed.text = testing::internal::GetCapturedStdout();
  return printed;
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(PlanCommand, PlansAnExampleWithKeysOfTrain) {
  const Printed text = Capture(&RunPlan, {"--hardware=two_core_box", "--servers=2"});
  ASSERT_TRUE(text.status.ok()) << text.status;
  EXPECT_THAT(text.text, AllOf(HasSubstr("842 K parameters"), HasSubstr("and 2 servers"),
                               HasSubstr("bottleneck: "), HasSubstr("change first: ")));
  const Printed json =
      Capture(&RunPlan, {"--hardware=two_core_box", "--json", "--training.micro_batches=3"});
  ASSERT_TRUE(json.status.ok()) << json.status;
  EXPECT_EQ(nlohmann::json::parse(json.text)["tokens_per_step"], 12 * 3 * 128);
}

// GPT-2 on eight H200: the default must not leave a server machine with one busy core.
TEST(PlanCommand, ServersUseTheirMachineByDefault) {
  const std::string model =
      WriteFile("gpt2.json",
                "{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_head\": 12, \"n_embd\": 768, "
                "\"n_positions\": 1024, \"vocab_size\": 50257}");
  const planner::Hardware hardware = *ReadHardware("h200_node");
  const auto plan =
      PlanCommandLine(hardware, *ParseCommandLine(kTrainCommand, {"--model=" + model}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->shape.server_threads, hardware.servers.front().cores / 2);
  EXPECT_NE(plan->bottleneck(), planner::Resource::kServerProcessors);
  const auto one = PlanCommandLine(
      hardware, *ParseCommandLine(kTrainCommand, {"--model=" + model, "--servers.threads=1"}));
  EXPECT_EQ(one->bottleneck(), planner::Resource::kServerProcessors);
}

TEST(PlanCommand, WritesAPage) {
  const std::string page = testing::TempDir() + "/plan.html";
  ASSERT_TRUE(Capture(&RunPlan, {"--hardware=h200_node", "--html=" + page}).status.ok());
  std::ostringstream text;
  text << std::ifstream(page).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("</html>"));
}

TEST(PlanCommand, PrintsAPlanThatDoesNotFit) {
  std::string yaml = *planner::HardwareExample("two_core_box");
  for (size_t at; (at = yaml.find("memory: 16GB")) != std::string::npos;) {
    yaml.replace(at, 12, "memory: 10MB");
  }
  const std::string file = WriteFile("tiny.yaml", yaml);
  const Printed printed = Capture(&RunPlan, {"--hardware=" + file});
  EXPECT_EQ(ExitCodeOf(printed.status), ExitCode::kDoesNotFit);
  EXPECT_THAT(printed.text, HasSubstr("DOES NOT FIT"));
  EXPECT_THAT(std::string(printed.status.message()), HasSubstr("servers.addresses"));
}

TEST(PlanCommand, RefusalsListKnownNames) {
  const auto message = [](const std::vector<std::string>& arguments) {
    return std::string(Capture(&RunPlan, arguments).status.message());
  };
  EXPECT_THAT(message({}), HasSubstr("h200_node"));
  EXPECT_THAT(message({"--hardware=nothing"}), HasSubstr("h200_node"));
  EXPECT_THAT(message({"--hardware=h200_node", "--no.such=1"}), HasSubstr("no.such"));
  EXPECT_THAT(message({"--hardware=h200_node", "--this-machine"}), HasSubstr("exclude"));
  EXPECT_THAT(message({"--reproduce=bert"}), HasSubstr("smart-infinity"));
}

TEST(PlanCommand, ReproducesAPaper) {
  const Printed json = Capture(&RunPlan, {"--reproduce=l2l", "--json"});
  ASSERT_TRUE(json.status.ok()) << json.status;
  const auto rows = nlohmann::json::parse(json.text);
  ASSERT_GT(rows.size(), 40u);
  size_t judged = 0;
  for (const auto& row : rows) {
    if (row["ok"].is_null()) continue;  // shown, and not judged
    EXPECT_TRUE(row["ok"].get<bool>()) << row;
    ++judged;
  }
  EXPECT_GT(judged, 30u);
}

v1::StepRecord RecordOf(double seconds) {
  v1::StepRecord record;
  record.set_step_seconds(seconds);
  return record;
}

TEST(PlanCheck, ComparesTheMedianStepWithThePlan) {
  Config config;
  const JobSpec spec = TinyGpt2Spec();
  PlanCheck nothing = *PlanCheck::New(config, spec);
  nothing.OnRecord(RecordOf(1));
  EXPECT_EQ(nothing.summary() + nothing.Verdict(), "") << "no machine is described";

  config.metrics.hardware = "two_core_box";
  PlanCheck check = *PlanCheck::New(config, spec);
  EXPECT_THAT(check.summary(), HasSubstr("bottleneck: "));
  EXPECT_EQ(check.Verdict(), "") << "no step has completed yet";
  const double planned =
      planner::MakePlan(config, spec, *ReadHardware("two_core_box"))->step().value();
  for (const double seconds : {100 * planned, planned / 2, planned / 2})
    check.OnRecord(RecordOf(seconds));
  v1::StepRecord evaluation = RecordOf(planned / 2);
  evaluation.mutable_evaluation();
  check.OnRecord(evaluation);
  EXPECT_THAT(check.Verdict(), HasSubstr("median of the last 3), +100.0 %"));

  config.metrics.hardware = "nothing";
  EXPECT_FALSE(PlanCheck::New(config, spec).ok());
}

TEST(SimulateCommand, RunsAScenario) {
  const std::vector<std::string> arguments = {"--hardware=mixed_cluster",
                                              "--workers=100",
                                              "--steps=200",
                                              "--failures=llama3-405b",
                                              "--worker-restart=60s",
                                              "--slow-fraction=0.05",
                                              "--cut-steps=10",
                                              "--slow-factor=1.5",
                                              "--jitter=0.05",
                                              "--seed=7",
                                              "--deaths=1s:worker,2s:server",
                                              "--membership=1s:-3,2s:+3",
                                              "--json"};
  const Printed first = Capture(&RunSimulate, arguments);
  ASSERT_TRUE(first.status.ok()) << first.status;
  const auto json = nlohmann::json::parse(first.text);
  EXPECT_EQ(json["steps"], 200);
  EXPECT_GE(json["worker_failures"], 1);
  EXPECT_EQ(json["server_failures"], 1);
  EXPECT_GT(json["goodput"].get<double>(), 0);
  EXPECT_LE(json["goodput"].get<double>(), 1);
  EXPECT_EQ(Capture(&RunSimulate, arguments).text, first.text) << "not deterministic";
}

TEST(SimulateCommand, AnUndisturbedStepEqualsThePlan) {
  for (const char* keys : {"--training.clip=none", "--training.clip=exact"}) {
    for (const std::string& example : planner::HardwareExamples()) {
      const planner::Hardware hardware = *ReadHardware(example);
      const planner::Plan plan = *PlanCommandLine(
          hardware,
          *ParseCommandLine(kTrainCommand, {keys, "--training.parts=11", "--servers.threads=8"}));
      planner::simulator::Scenario scenario = ScenarioOf(plan, hardware);
      scenario.steps = 10;
      const auto result = planner::simulator::Simulate(scenario);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->step.duration, plan.step()) << example << " " << keys;
      EXPECT_EQ(result->bottleneck(), plan.bottleneck()) << example << " " << keys;
    }
  }
}

TEST(SimulateCommand, RefusalsNameTheOption) {
  const auto message = [](const std::string& argument) {
    return std::string(
        Capture(&RunSimulate, {"--hardware=two_core_box", argument}).status.message());
  };
  EXPECT_THAT(message("--replay=never"), HasSubstr("--replay: found \"never\""));
  EXPECT_THAT(message("--failures=mine"), HasSubstr("llama3-405b"));
  EXPECT_THAT(message("--cut-time=5"), HasSubstr("--cut-time"));
  EXPECT_THAT(message("--membership=5s"), HasSubstr("TIME:+N"));
  EXPECT_THAT(message("--deaths=5s:lead"), HasSubstr("TIME:server"));
  EXPECT_THAT(message("--slow-fraction=2"), HasSubstr("slow_fraction"));
}

}  // namespace
}  // namespace eps
