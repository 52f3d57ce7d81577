#include "base/numerics/loss_scale.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace eps {
namespace {

LossScaleRule Rule(uint32_t initial, uint32_t window, uint32_t hysteresis) {
  LossScaleRule rule;
  rule.initial_log2 = initial;
  rule.window = window;
  rule.hysteresis = hysteresis;
  return rule;
}

// The same rule in the words of another program: a factor instead of an exponent, and counters that
// count the other way.
class FactorModel {
 public:
  explicit FactorModel(const LossScaleRule& rule)
      : rule_(rule), factor_(std::ldexp(1.0, static_cast<int>(rule.initial_log2))) {}

  void Step(bool overflow) {
    if (overflow) {
      last_event_ = step_;
      ++overflows_;
      if (overflows_ >= rule_.hysteresis) factor_ = std::max(1.0, factor_ / 2);
    } else if (step_ - last_event_ == rule_.window) {
      last_event_ = step_;
      overflows_ = 0;
      factor_ = std::min(std::ldexp(1.0, kMaxLossScaleLog2), factor_ * 2);
    }
    ++step_;
  }
  double factor() const { return factor_; }

 private:
  const LossScaleRule rule_;
  double factor_;
  uint64_t step_ = 1;
  uint64_t last_event_ = 0;  // the last overflow or change
  uint64_t overflows_ = 0;   // since the scale doubled
};

TEST(LossScaleTest, TenThousandSequencesFollowTheModel) {
  std::mt19937_64 random(20);
  for (int sequence = 0; sequence < 10000; ++sequence) {
    const LossScaleRule rule = Rule(random() % 25, 1 + random() % 6, 1 + random() % 4);
    const uint64_t rarity = 1 + random() % 9;
    FactorModel model(rule);
    LossScale scale = FirstLossScale(rule);
    for (int step = 0; step < 80; ++step) {
      ASSERT_EQ(std::ldexp(1.0, scale.log2), model.factor())
          << "sequence " << sequence << ", step " << step;
      const bool overflow = random() % rarity == 0;
      scale = NextLossScale(rule, scale, overflow);
      model.Step(overflow);
    }
  }
}

TEST(LossScaleTest, HalvesFromTheSecondOverflowOn) {
  const LossScaleRule rule = Rule(16, 3, 2);
  LossScale scale = FirstLossScale(rule);
  scale = NextLossScale(rule, scale, true);
  EXPECT_EQ(scale.log2, 16);
  scale = NextLossScale(rule, scale, true);
  EXPECT_EQ(scale.log2, 15);
  scale = NextLossScale(rule, scale, true);
  EXPECT_EQ(scale.log2, 14);
  for (int step = 0; step < 3; ++step) scale = NextLossScale(rule, scale, false);
  EXPECT_EQ(scale.log2, 15);
  EXPECT_EQ(scale.hysteresis_left, 2u);
}

TEST(LossScaleTest, StaysWithinItsBounds) {
  const LossScaleRule rule = Rule(24, 1, 1);
  LossScale scale = NextLossScale(rule, FirstLossScale(rule), false);
  EXPECT_EQ(scale.log2, 24);
  for (int step = 0; step < 30; ++step) {
    EXPECT_EQ(IsLowest(rule, scale), scale.log2 == 0);
    scale = NextLossScale(rule, scale, true);
  }
  EXPECT_EQ(scale.log2, 0);
  EXPECT_TRUE(IsLowest(rule, scale));
}

TEST(LossScaleTest, AStaticScaleNeverChanges) {
  LossScaleRule rule = Rule(7, 1, 1);
  rule.scaling = LossScaling::kStatic;
  const LossScale scale = FirstLossScale(rule);
  EXPECT_EQ(NextLossScale(rule, scale, true), scale);
  EXPECT_EQ(NextLossScale(rule, scale, false), scale);
  EXPECT_FALSE(IsLowest(rule, scale));
}

}  // namespace
}  // namespace eps
