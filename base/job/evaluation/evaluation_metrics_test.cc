#include "base/job/evaluation/evaluation_metrics.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/models/model_family.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

// A program with a head of another kind.
ModelSpec WithHead(const char* task, const char* kind, int classes) {
  json program = json::parse(LlamaProgram({}));
  program["task"] = task;
  program["variant"] = "encoder";
  program["head"] = {{"kind", kind}, {"rowwise", false}};
  program["shape"]["classes"] = classes;
  return ModelOf(program.dump());
}

std::string NamesOfMetrics(const std::vector<Metric>& metrics) {
  std::string names;
  for (const Metric metric : metrics) absl::StrAppend(&names, NameOf(metric), " ");
  return names;
}

TEST(EvaluationMetricsTest, TheTaskDecidesWhichThereAre) {
  EXPECT_EQ(NamesOfMetrics(MetricsOf(ModelOf(LlamaProgram({})))), "loss perplexity ");
  EXPECT_EQ(NamesOfMetrics(MetricsOf(WithHead("classify", "classes", 3))),
            "loss accuracy f1 matthews ");
  EXPECT_EQ(NamesOfMetrics(MetricsOf(WithHead("regress", "mse", 1))), "loss pearson ");
  ModelSpec synthetic;
  synthetic.type = ModelType::kSynthetic;
  EXPECT_EQ(NamesOfMetrics(MetricsOf(synthetic)), "loss ");
}

TEST(EvaluationMetricsTest, ManyClassesHaveAccuracyOnly) {
  EXPECT_EQ(ClassesToCount(WithHead("classify", "classes", 1024)), 1024u);
  const ModelSpec model = WithHead("classify", "classes", 1025);
  EXPECT_EQ(ClassesToCount(model), 0u);
  EXPECT_EQ(NamesOfMetrics(MetricsOf(model)), "loss accuracy ");
  const absl::Status refused = ChooseMetrics(model, {Metric::kMatthews}).status();
  for (const char* text : {"eval.metrics: the model has no matthews; it has loss, accuracy",
                           "at most 1024 classes, and it has 1025"}) {
    EXPECT_TRUE(absl::StrContains(refused.message(), text)) << refused;
  }
}

TEST(EvaluationMetricsTest, RefusesThoseOfOtherTasks) {
  const ModelSpec llama = ModelOf(LlamaProgram({}));
  EXPECT_EQ(NamesOfMetrics(*ChooseMetrics(llama, {})), "loss perplexity ");
  EXPECT_EQ(NamesOfMetrics(*ChooseMetrics(llama, {Metric::kPerplexity, Metric::kPerplexity})),
            "perplexity ");
  const absl::Status refused = ChooseMetrics(llama, {Metric::kLoss, Metric::kAccuracy}).status();
  EXPECT_EQ(refused.message(), "eval.metrics: the model has no accuracy; it has loss, perplexity");
}

TEST(EvaluationMetricsTest, FiguresWithoutCountsAreLeftOut) {
  const std::vector<Metric> metrics = {Metric::kLoss, Metric::kPerplexity, Metric::kAccuracy};
  const std::vector<Figure> without = FiguresOf(metrics, 2.0, nullptr);
  ASSERT_EQ(without.size(), 2u);
  EXPECT_EQ(without[0].value, 2.0);
  EXPECT_NEAR(without[1].value, std::exp(2.0), 1e-14);
  HeldOutCounts counts;
  counts.rows = 4;
  counts.correct = 3;
  const std::vector<Figure> with = FiguresOf(metrics, 2.0, &counts);
  ASSERT_EQ(with.size(), 3u);
  EXPECT_EQ(with[2].metric, Metric::kAccuracy);
  EXPECT_EQ(with[2].value, 0.75);
  EXPECT_TRUE(NeedPredictions(metrics));
  EXPECT_FALSE(NeedPredictions({Metric::kLoss, Metric::kPerplexity}));
}

}  // namespace
}  // namespace eps
