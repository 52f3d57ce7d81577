#include "cli/driver/best_evaluation.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

BestEvaluation With(Metric metric, uint64_t patience,
                    const std::vector<std::pair<uint64_t, double>>& figures) {
  EvaluationRules rules;
  rules.best_metric = metric;
  rules.patience = patience;
  BestEvaluation evaluations(rules);
  for (const auto& [step, figure] : figures) evaluations.Add(step, figure);
  return evaluations;
}

TEST(BestEvaluationTest, TheMetricSaysWhatIsBetter) {
  const std::vector<std::pair<uint64_t, double>> figures = {{2, 0.5}, {4, 0.25}, {6, 0.75}};
  EXPECT_EQ(With(Metric::kLoss, 0, figures).best()->step, 4u);
  EXPECT_EQ(With(Metric::kPerplexity, 0, figures).best()->step, 4u);
  EXPECT_EQ(With(Metric::kAccuracy, 0, figures).best()->step, 6u);
  EXPECT_EQ(With(Metric::kPearson, 0, figures).best()->step, 6u);
  EXPECT_FALSE(With(Metric::kLoss, 0, {}).best().has_value());
}

TEST(BestEvaluationTest, PatienceCountsEvaluationsInARow) {
  // An equal figure is no better one.
  const std::vector<std::pair<uint64_t, double>> figures = {{2, 3}, {4, 3}, {6, 2}, {8, 2.5}};
  EXPECT_FALSE(With(Metric::kLoss, 2, figures).stop_border().has_value());
  EXPECT_EQ(With(Metric::kLoss, 1, figures).stop_border(), 5u);
  auto more = figures;
  more.emplace_back(10, 2);
  EXPECT_EQ(With(Metric::kLoss, 2, more).stop_border(), 11u);
  // Later evaluations do not move it.
  more.emplace_back(12, 1);
  EXPECT_EQ(With(Metric::kLoss, 2, more).stop_border(), 11u);
  EXPECT_FALSE(With(Metric::kLoss, 0, more).stop_border().has_value());
}

TEST(BestEvaluationTest, InfiniteFiguresAreNeverBest) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const BestEvaluation evaluations = With(Metric::kLoss, 2, {{1, kNan}, {2, 5}, {3, kNan}});
  EXPECT_EQ(evaluations.best()->step, 2u);
  EXPECT_FALSE(evaluations.stop_border().has_value());
  EXPECT_EQ(With(Metric::kLoss, 2, {{1, kNan}, {2, kNan}}).stop_border(), 3u);
}

TEST(BestEvaluationTest, FindsTheBestOfSomeSteps) {
  const BestEvaluation evaluations = With(Metric::kF1, 0, {{2, 0.9}, {4, 0.5}, {6, 0.5}});
  EXPECT_EQ(evaluations.BestOf({4, 6})->step, 4u);
  EXPECT_EQ(evaluations.BestOf({2, 4, 6})->step, 2u);
  EXPECT_FALSE(evaluations.BestOf({3}).has_value());
}

TEST(BestEvaluationTest, SaysWhyTheRunEnds) {
  const std::string text =
      With(Metric::kAccuracy, 2, {{10, 0.8125}, {20, 0.5}, {30, 0.75}}).StopText();
  EXPECT_EQ(text,
            "eval_accuracy of 2 evaluations was no better (training.early_stop_patience); the best "
            "is eval_accuracy 0.8125 after step 10");
}

}  // namespace
}  // namespace eps
