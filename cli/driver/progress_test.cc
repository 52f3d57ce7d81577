#include "cli/driver/progress.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

v1::StepRecord Record() {
  v1::StepRecord record;
  record.set_step(120);
  record.set_version(119);
  record.set_loss(2.43117);
  record.set_grad_norm(0.9123);
  record.set_lr(2.98e-4);
  record.set_tokens(2048);
  record.set_step_seconds(1.1118);
  record.set_term(3);
  return record;
}

TEST(ProgressTest, TheLineHasOrderedKeys) {
  EXPECT_EQ(ProgressLine(Record(), 5000, 7861),
            "step: 120/5000 loss: 2.4312 grad_norm: 0.912 lr: 2.98e-4 tps: 1,842 eta: 2h11m");
  v1::StepRecord skipped = Record();
  skipped.set_skipped(true);
  EXPECT_EQ(ProgressLine(skipped, 5000, -1),
            "step: 120/5000 loss: 2.4312 grad_norm: 0.912 lr: 2.98e-4 tps: 1,842 eta: - skipped");
}

TEST(ProgressTest, TheBarFillsItsColumns) {
  EXPECT_EQ(ProgressBar(Record(), 240, 7861, 64),
            "[=======>       ] 120/240 loss 2.4312 1,842 tokens/s 2h11m left");
  v1::StepRecord last = Record();
  last.set_step(240);
  EXPECT_EQ(ProgressBar(last, 240, 0, 61),
            "[===============] 240/240 loss 2.4312 1,842 tokens/s 0s left");
}

TEST(ProgressTest, NarrowTerminalsGetShorterLines) {
  EXPECT_EQ(ProgressBar(Record(), 240, 7861, 50), "120/240 loss 2.4312 1,842 tokens/s 2h11m left");
  EXPECT_EQ(ProgressBar(Record(), 240, 7861, 40), "120/240 loss 2.4312 1,842 tokens/s");
  EXPECT_EQ(ProgressBar(Record(), 240, -1, 5), "120/");
  for (size_t columns = 0; columns < 120; ++columns) {
    EXPECT_LE(ProgressBar(Record(), 240, 7861, columns).size(), columns == 0 ? 0 : columns - 1);
  }
}

v1::StepRecord EvaluationRecord() {
  v1::StepRecord record;
  record.set_step(120);
  record.set_term(3);
  record.set_step_seconds(3.25);
  record.mutable_evaluation()->set_loss(2.43117);
  record.mutable_evaluation()->set_tokens(8192);
  return record;
}

TEST(ProgressTest, FormatsEvaluationsOnTheirOwnLine) {
  EXPECT_EQ(EvaluationLine(EvaluationRecord(), 5000),
            "step: 120/5000 eval_loss: 2.4312 eval_tokens: 8,192 eval_time: 3s");
  const auto line = nlohmann::json::parse(MetricsLine(EvaluationRecord()));
  EXPECT_EQ(line["eval_loss"].get<double>(), 2.43117);
  EXPECT_FALSE(line.contains("loss"));
}

TEST(ProgressTest, EvaluationsHaveTheirFigures) {
  v1::StepRecord record = EvaluationRecord();
  const std::vector<Metric> metrics = {Metric::kLoss, Metric::kAccuracy, Metric::kF1};
  EXPECT_TRUE(FiguresOf(record.evaluation(), metrics).empty()) << "the workers count nothing";
  v1::HeldOutCounts& counts = *record.mutable_evaluation()->mutable_counts();
  counts.set_rows(16);
  counts.set_correct(13);
  for (const uint64_t n : {uint64_t{7}, uint64_t{6}}) counts.add_class_correct(n);
  for (const uint64_t n : {uint64_t{9}, uint64_t{7}}) counts.add_class_predicted(n);
  for (const uint64_t n : {uint64_t{8}, uint64_t{8}}) counts.add_class_labels(n);
  const std::vector<Figure> figures = FiguresOf(record.evaluation(), metrics);
  EXPECT_EQ(EvaluationLine(record, 5000, figures),
            "step: 120/5000 eval_loss: 2.4312 eval_accuracy: 0.8125 eval_f1: 0.8000 eval_tokens: "
            "8,192 eval_time: 3s");
  const auto line = nlohmann::json::parse(MetricsLine(record, figures));
  EXPECT_EQ(line["eval_accuracy"].get<double>(), 0.8125);
  EXPECT_EQ(line["eval_f1"].get<double>(), 0.8);
}

TEST(ProgressTest, TheReferencePageShowsTheLine) {
  std::ostringstream page;
  page << std::ifstream("docs/reference/progress.md").rdbuf();
  EXPECT_TRUE(absl::StrContains(page.str(), ProgressLine(Record(), 5000, 7861)));
  EXPECT_TRUE(absl::StrContains(page.str(), MetricsLine(Record())));
  EXPECT_TRUE(absl::StrContains(page.str(), EvaluationLine(EvaluationRecord(), 5000)));
  EXPECT_TRUE(absl::StrContains(page.str(), MetricsLine(EvaluationRecord())));
}

TEST(ProgressTest, MetricsLinesReadBackBitForBit) {
  v1::StepRecord record = Record();
  record.set_loss(0.1 + 0.2);
  const auto line = nlohmann::json::parse(MetricsLine(record));
  EXPECT_EQ(line["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(line["step"], 120);
  EXPECT_EQ(line["term"], 3);
  EXPECT_EQ(line["version"], 119);
  EXPECT_EQ(line["tokens_per_second"].get<double>(), 2048 / 1.1118);
  EXPECT_FALSE(line.contains("skipped"));
  record.set_loss(NAN);
  EXPECT_TRUE(nlohmann::json::parse(MetricsLine(record))["loss"].is_null());
}

TEST(ProgressTest, TheRemainingTimeFollowsTheLastSteps) {
  EtaEstimator eta;
  EXPECT_LT(eta.SecondsFor(10), 0);
  for (int i = 0; i < 100; ++i) eta.Add(100);
  for (int i = 0; i < 20; ++i) eta.Add(2);
  EXPECT_DOUBLE_EQ(eta.SecondsFor(10), 20);
}

}  // namespace
}  // namespace eps
