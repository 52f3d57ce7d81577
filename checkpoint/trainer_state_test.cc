#include "checkpoint/trainer_state.h"

#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

TEST(TrainerHistoryTest, TheHistoryStaysBounded) {
  TrainerHistory history;
  for (int step = 1; step <= 20'000; ++step) {
    v1::StepRecord record;
    record.set_step(step);
    record.set_loss(step);
    EXPECT_TRUE(history.Add(record));
  }
  const auto state = nlohmann::json::parse(history.Text(TinyGpt2Spec(), 20'000, 0));
  EXPECT_LT(state["log_history"].size(), 2000u);
  EXPECT_GE(state["log_history"].size(), 1000u);
  EXPECT_EQ(history.last_step(), 20'000u);
}

TEST(TrainerHistoryTest, IgnoresTheSecondEvaluationOfABorder) {
  TrainerHistory history;
  v1::StepRecord record;
  record.set_step(4);
  record.mutable_evaluation()->set_loss(2.5);
  EXPECT_FALSE(history.Evaluated(4));
  EXPECT_TRUE(history.Add(record));
  EXPECT_FALSE(history.Add(record));
  EXPECT_TRUE(history.Evaluated(4));
  EXPECT_FALSE(history.Evaluated(5));
  const auto state = nlohmann::json::parse(history.Text(TinyGpt2Spec(), 4, 2));
  ASSERT_EQ(state["log_history"].size(), 1u);
  EXPECT_EQ(state["log_history"][0]["eval_loss"], 2.5);
  EXPECT_EQ(state["eval_steps"], 2);
  EXPECT_TRUE(state["best_metric"].is_null());
}

TEST(TrainerHistoryTest, NamesFiguresAndTheBestCheckpoint) {
  TrainerHistory history;
  v1::StepRecord record;
  record.set_step(4);
  record.mutable_evaluation()->set_loss(2.5);
  history.Add(record, {{Metric::kAccuracy, 0.75}});
  const auto state =
      nlohmann::json::parse(history.Text(TinyGpt2Spec(), 4, 2, {0.75, "out/checkpoint-4"}));
  EXPECT_EQ(state["log_history"][0]["eval_accuracy"], 0.75);
  EXPECT_EQ(state["best_metric"], 0.75);
  EXPECT_EQ(state["best_model_checkpoint"], "out/checkpoint-4");
}

}  // namespace
}  // namespace eps
