#include "cli/commands/watch/step_history.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;

v1::StepRecord Step(uint64_t step) {
  v1::StepRecord record;
  record.set_step(step);
  return record;
}

v1::StepRecord EvaluationAfter(uint64_t step) {
  v1::StepRecord record = Step(step);
  record.mutable_evaluation()->set_loss(1);
  return record;
}

std::vector<uint64_t> StepsOf(const std::vector<StepHistory::Point>& points) {
  std::vector<uint64_t> steps;
  for (const StepHistory::Point& point : points) steps.push_back(point.record.step());
  return steps;
}

TEST(StepHistory, GivesWhatIsNew) {
  StepHistory history(100);
  EXPECT_EQ(history.last_step_or_null(), nullptr);
  for (const uint64_t step : {1, 2, 3}) history.Add(Step(step));
  const auto first = history.After(0);
  EXPECT_THAT(StepsOf(first), ElementsAre(1, 2, 3));
  EXPECT_TRUE(history.After(first.back().serial).empty());
  history.Add(EvaluationAfter(3));
  history.Add(Step(4));
  EXPECT_THAT(StepsOf(history.After(first.back().serial)), ElementsAre(3, 4));
  EXPECT_EQ(history.last_step_or_null()->step(), 4u);
}

TEST(StepHistory, LeavesOutRepetitions) {
  StepHistory history(100);
  for (const uint64_t step : {1, 2, 2, 1, 3}) history.Add(Step(step));
  for (int i = 0; i < 3; ++i) history.Add(EvaluationAfter(2));
  EXPECT_THAT(StepsOf(history.After(0)), ElementsAre(1, 2, 3, 2));
}

TEST(StepHistory, ThinsOutALongRun) {
  StepHistory history(8);
  for (uint64_t step = 1; step <= 1001; ++step) {
    history.Add(Step(step));
    if (step == 77) history.Add(EvaluationAfter(step));
    EXPECT_LE(history.After(0).size(), 8u + 2u) << step;
  }
  // Steps that 128 divides, the evaluation, and the last step.
  EXPECT_THAT(StepsOf(history.After(0)), ElementsAre(77, 128, 256, 384, 512, 640, 768, 896, 1001));
  uint64_t serial = 0;
  for (const StepHistory::Point& point : history.After(0)) {
    EXPECT_GT(point.serial, serial);
    serial = point.serial;
  }
}

TEST(StepHistory, SerialsGoOnAfterClear) {
  StepHistory history(100);
  for (const uint64_t step : {1, 2, 3}) history.Add(Step(step));
  const uint64_t serial = history.After(0).back().serial;
  history.Clear();
  EXPECT_TRUE(history.After(0).empty());
  EXPECT_EQ(history.last_step_or_null(), nullptr);
  history.Add(Step(1));
  EXPECT_THAT(StepsOf(history.After(serial)), ElementsAre(1));
}

}  // namespace
}  // namespace eps
