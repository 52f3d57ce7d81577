#include "cli/driver/metrics_log.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

v1::StepRecord Record(uint64_t step, double loss) {
  v1::StepRecord record;
  record.set_step(step);
  record.set_loss(loss);
  return record;
}

TEST(MetricsLogTest, CutsMetricsBackToTheResumedBorder) {
  const std::string path = testing::TempDir() + "/metrics.jsonl";
  std::filesystem::remove(path);
  {
    auto log = MetricsLog::Open(path, 0);
    ASSERT_TRUE(log.ok()) << log.status();
    for (int step = 1; step <= 5; ++step) ASSERT_TRUE((*log)->Add(Record(step, 1.5)).ok());
  }
  std::ofstream(path, std::ios::app) << "{\"step\":6,\"lo";  // a crash in the middle of a line
  {
    auto log = MetricsLog::Open(path, 3);
    ASSERT_TRUE(log.ok()) << log.status();
    ASSERT_TRUE((*log)->Add(Record(4, 2.5)).ok());
    const auto state = nlohmann::json::parse((*log)->history().Text(TinyGpt2Spec(), 4, 0));
    EXPECT_EQ(state["global_step"], 4);
    ASSERT_EQ(state["log_history"].size(), 4u);
    EXPECT_EQ(state["log_history"][2]["loss"], 1.5);
    EXPECT_EQ(state["log_history"][3]["loss"], 2.5);
    EXPECT_EQ((*log)->MeanLoss(20), 2.5);
  }
  std::ifstream file(path);
  std::vector<int> steps;
  for (std::string line; std::getline(file, line);) {
    steps.push_back(nlohmann::json::parse(line)["step"].get<int>());
  }
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3, 4}));
}

v1::StepRecord Evaluation(uint64_t step, double loss, uint64_t correct) {
  v1::StepRecord record;
  record.set_step(step);
  record.mutable_evaluation()->set_loss(loss);
  record.mutable_evaluation()->mutable_counts()->set_rows(8);
  record.mutable_evaluation()->mutable_counts()->set_correct(correct);
  return record;
}

TEST(MetricsLogTest, AResumeComparesTheSameEvaluations) {
  const std::string path = testing::TempDir() + "/evaluations.jsonl";
  std::filesystem::remove(path);
  EvaluationRules rules;
  rules.metrics = {Metric::kLoss, Metric::kAccuracy};
  rules.best_metric = Metric::kAccuracy;
  rules.patience = 2;
  {
    auto log = MetricsLog::Open(path, 0, rules);
    ASSERT_TRUE(log.ok()) << log.status();
    for (uint64_t step = 1; step <= 6; ++step) {
      ASSERT_TRUE((*log)->Add(Record(step, 1)).ok());
      ASSERT_TRUE((*log)->Add(Evaluation(step, 0.5, step == 3 ? 7 : 4)).ok());
    }
    EXPECT_EQ((*log)->evaluations().best()->step, 3u);
    EXPECT_EQ((*log)->evaluations().best()->figure, 0.875);
    EXPECT_EQ((*log)->evaluations().stop_border(), 6u);
    ASSERT_EQ((*log)->last_figures().size(), 1u);
    EXPECT_EQ((*log)->last_figures()[0].value, 0.5);
  }
  EXPECT_EQ(MetricsLog::ReadEvaluations(path, 6, rules).stop_border(), 6u);
  EXPECT_FALSE(MetricsLog::ReadEvaluations(path, 4, rules).stop_border().has_value());
  EXPECT_FALSE(MetricsLog::ReadEvaluations(path + "-none", 6, rules).best().has_value());
  auto log = MetricsLog::Open(path, 4, rules);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ((*log)->evaluations().best()->step, 3u);
  EXPECT_FALSE((*log)->evaluations().stop_border().has_value());
  // A border that is evaluated again does not count twice.
  ASSERT_TRUE((*log)->Add(Evaluation(4, 0.5, 4)).ok());
  EXPECT_FALSE((*log)->evaluations().stop_border().has_value());
  ASSERT_TRUE((*log)->Add(Evaluation(5, 0.5, 4)).ok());
  EXPECT_EQ((*log)->evaluations().stop_border(), 6u);
  const auto state = nlohmann::json::parse((*log)->history().Text(TinyGpt2Spec(), 5, 1));
  EXPECT_EQ(state["log_history"].back()["eval_accuracy"], 0.5);
  EXPECT_EQ(state["log_history"][1]["eval_accuracy"], 0.5) << "of the earlier process";
}

TEST(MetricsLogTest, AveragesTheLastLosses) {
  auto log = MetricsLog::Open("", 0);
  ASSERT_TRUE(log.ok());
  for (int step = 1; step <= 2'000; ++step) ASSERT_TRUE((*log)->Add(Record(step, step)).ok());
  EXPECT_EQ((*log)->MeanLoss(2), 1'999.5);
}

}  // namespace
}  // namespace eps
