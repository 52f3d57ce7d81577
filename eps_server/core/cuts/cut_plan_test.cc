#include "eps_server/core/cuts/cut_plan.h"

#include "gtest/gtest.h"
#include "storage/cuts/cut.h"

namespace eps {
namespace {

constexpr uint64_t kLast = 1000;
constexpr uint64_t kMinute = 60'000;

TEST(CutPlanTest, CutsMultiplesAndTheLastStep) {
  CutPlan plan(/*cut_steps=*/4, /*cut_ms=*/0);
  plan.OnOpened(3, 0);
  EXPECT_FALSE(plan.Due(3, kLast, 0));
  EXPECT_TRUE(plan.Due(4, kLast, 0));
  EXPECT_FALSE(plan.Due(7, kLast, 1000 * kMinute));
  EXPECT_TRUE(plan.Due(7, /*last_step=*/7, 0));
}

TEST(CutPlanTest, ZeroCutsOnlyTheLastStep) {
  CutPlan plan(/*cut_steps=*/0, /*cut_ms=*/0);
  plan.OnOpened(0, 0);
  EXPECT_FALSE(plan.Due(kLast - 1, kLast, 1000 * kMinute));
  EXPECT_TRUE(plan.Due(kLast, kLast, 0));
  EXPECT_FALSE(CutPlan().Due(kLast, kLast, 0)) << "cuts are disabled";
}

TEST(CutPlanTest, TimeBoundsEveryInterval) {
  for (const uint64_t cut_steps : {uint64_t{0}, uint64_t{500}, kAutoCutSteps}) {
    CutPlan plan(cut_steps, kMinute);
    plan.OnOpened(0, 5);
    EXPECT_FALSE(plan.Due(1, kLast, 5 + kMinute - 1)) << cut_steps;
    EXPECT_TRUE(plan.Due(1, kLast, 5 + kMinute)) << cut_steps;
    plan.OnDecided(1, 5 + kMinute);
    plan.OnEverywhere(1);
    EXPECT_FALSE(plan.Due(2, kLast, 5 + 2 * kMinute - 1)) << cut_steps;
    EXPECT_TRUE(plan.Due(2, kLast, 5 + 2 * kMinute)) << cut_steps;
  }
}

TEST(CutPlanTest, CutsByNumberBeginTheTimeAgain) {
  CutPlan plan(/*cut_steps=*/4, kMinute);
  plan.OnOpened(0, 0);
  plan.OnDecided(4, kMinute - 1);
  plan.OnEverywhere(4);
  EXPECT_FALSE(plan.Due(5, kLast, kMinute));
  EXPECT_TRUE(plan.Due(5, kLast, 2 * kMinute - 1));
  EXPECT_TRUE(plan.Due(8, kLast, kMinute)) << "multiples stay";
}

TEST(CutPlanTest, TimeWaitsForTheLastCut) {
  CutPlan plan(/*cut_steps=*/0, kMinute);
  plan.OnOpened(0, 0);
  plan.OnDecided(3, kMinute);
  plan.OnEverywhere(2);
  EXPECT_FALSE(plan.Due(4, kLast, 3 * kMinute)) << "some shard does not have the cut yet";
  plan.OnEverywhere(3);
  EXPECT_TRUE(plan.Due(4, kLast, 3 * kMinute));
}

TEST(CutPlanTest, SlowCutsExtendTheTime) {
  CutPlan plan(/*cut_steps=*/0, kMinute);
  plan.OnOpened(0, 0);
  plan.OnMeasured(/*cut_seconds=*/12, /*step_seconds=*/1);
  EXPECT_FALSE(plan.Due(1, kLast, 2 * kMinute - 1));
  EXPECT_TRUE(plan.Due(1, kLast, 2 * kMinute));
  plan.OnMeasured(/*cut_seconds=*/6, /*step_seconds=*/1);
  EXPECT_TRUE(plan.Due(1, kLast, kMinute));
}

TEST(CutPlanTest, AutoFollowsTheMeasuredTimes) {
  CutPlan plan(kAutoCutSteps, /*cut_ms=*/0);
  plan.OnOpened(0, 0);
  EXPECT_TRUE(plan.Due(10, kLast, 0));
  plan.OnMeasured(/*cut_seconds=*/1, /*step_seconds=*/10);
  EXPECT_EQ(plan.interval(), 25u);
  EXPECT_FALSE(plan.Due(24, kLast, 0));
  EXPECT_TRUE(plan.Due(25, kLast, 0));
  plan.Limit(8);
  EXPECT_TRUE(plan.Due(8, kLast, 0));
}

}  // namespace
}  // namespace eps
