#include "base/numerics/held_out_counts.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr double kClose = 1e-12;

HeldOutCounts Classes(const std::vector<int32_t>& labels, const std::vector<int32_t>& predicted,
                      uint32_t classes) {
  return CountClasses(predicted, labels, classes);
}

// The expected figures follow from the definitions that scikit-learn documents.
TEST(HeldOutCountsTest, TwoClassesMatchScikitLearn) {
  const HeldOutCounts counts =
      Classes({0, 1, 1, 1, 0, 1, 0, 0, 1, 1}, {0, 1, 0, 1, 1, 1, 0, 0, 1, 0}, 2);
  EXPECT_EQ(Accuracy(counts), 0.7);
  EXPECT_NEAR(F1(counts), 8.0 / 11, kClose);  // of class 1: precision 4/5, recall 4/6
  EXPECT_NEAR(Matthews(counts), 0.408248290463863, kClose);
}

TEST(HeldOutCountsTest, SeveralClassesMatchScikitLearn) {
  const HeldOutCounts counts =
      Classes({0, 1, 2, 2, 1, 0, 2, 1, 2, 0}, {0, 2, 2, 2, 1, 0, 1, 1, 0, 0}, 3);
  EXPECT_EQ(Accuracy(counts), 0.7);
  EXPECT_NEAR(F1(counts), 0.6984126984126983, kClose);  // macro
  EXPECT_NEAR(Matthews(counts), 0.5606060606060606, kClose);
  // Class 2 of four is neither predicted nor there, and does not count in the mean.
  const HeldOutCounts gap = Classes({0, 1, 3, 3, 1}, {0, 1, 3, 1, 1}, 4);
  EXPECT_NEAR(F1(gap), (1 + 0.8 + 2.0 / 3) / 3, kClose);
}

TEST(HeldOutCountsTest, ConstantsAndOneClassGiveZero) {
  const HeldOutCounts constant = Classes({0, 1, 1, 0}, {0, 0, 0, 0}, 2);
  EXPECT_EQ(Accuracy(constant), 0.5);
  EXPECT_EQ(F1(constant), 0);
  EXPECT_EQ(Matthews(constant), 0);
  const HeldOutCounts one_class = Classes({1, 1, 1}, {1, 0, 1}, 2);
  EXPECT_NEAR(F1(one_class), 0.8, kClose);
  EXPECT_EQ(Matthews(one_class), 0);
  const HeldOutCounts perfect = Classes({1, 1}, {1, 1}, 2);
  EXPECT_EQ(F1(perfect), 1);
  EXPECT_EQ(Matthews(perfect), 0);
}

TEST(HeldOutCountsTest, NothingGivesZero) {
  for (const uint32_t classes : {0u, 2u, 3u}) {
    const HeldOutCounts none = Classes({}, {}, classes);
    EXPECT_EQ(Accuracy(none), 0);
    EXPECT_EQ(F1(none), 0);
    EXPECT_EQ(Matthews(none), 0);
    EXPECT_EQ(Pearson(none), 0);
  }
}

TEST(HeldOutCountsTest, IgnoredLabelsDoNotCount) {
  const HeldOutCounts counts = Classes({-100, 1, -100, 0}, {1, 1, 0, 1}, 2);
  EXPECT_EQ(counts.rows, 2u);
  EXPECT_EQ(counts.correct, 1u);
  EXPECT_EQ(counts.class_labels, (std::vector<uint64_t>{1, 1}));
  EXPECT_EQ(counts.class_predicted, (std::vector<uint64_t>{0, 2}));
  EXPECT_EQ(counts.class_correct, (std::vector<uint64_t>{0, 1}));
}

TEST(HeldOutCountsTest, ClassesBeyondTheCountedHaveAccuracy) {
  const HeldOutCounts counts = Classes({5, 7, 9}, {5, 7, 8}, 0);
  EXPECT_EQ(counts.correct, 2u);
  EXPECT_TRUE(counts.class_labels.empty());
}

TEST(HeldOutCountsTest, IntegersAddUp) {
  HeldOutCounts sum;
  AddIntegers(Classes({0, 1, 2, 2, 1}, {0, 2, 2, 2, 1}, 3), &sum);
  AddIntegers(Classes({0, 2, 1, 2, 0}, {0, 1, 1, 0, 0}, 3), &sum);
  const HeldOutCounts all =
      Classes({0, 1, 2, 2, 1, 0, 2, 1, 2, 0}, {0, 2, 2, 2, 1, 0, 1, 1, 0, 0}, 3);
  EXPECT_EQ(sum.correct, all.correct);
  EXPECT_EQ(sum.class_correct, all.class_correct);
  EXPECT_EQ(sum.class_predicted, all.class_predicted);
  EXPECT_EQ(sum.class_labels, all.class_labels);
}

TEST(HeldOutCountsTest, PearsonMatchesItsDefinition) {
  const HeldOutCounts counts = SumPairs(std::vector<float>{2.5f, 0.0f, 2.0f, 8.0f, -1.0f},
                                        std::vector<float>{3.0f, -0.5f, 2.0f, 7.0f, 0.5f});
  EXPECT_NEAR(Pearson(counts), 0.9715638795461271, kClose);
  const std::vector<float> up = {1, 2, 3};
  const std::vector<float> down = {5, 3, 1};
  EXPECT_EQ(Pearson(SumPairs(up, up)), 1);
  EXPECT_EQ(Pearson(SumPairs(up, down)), -1);
}

TEST(HeldOutCountsTest, EqualNumbersHaveNoCorrelation) {
  // 0.1 is rounded: the sums of its powers do not cancel exactly.
  const std::vector<float> constant(1000, 0.1f);
  std::vector<float> targets;
  for (int i = 0; i < 1000; ++i) targets.push_back(static_cast<float>(i % 7));
  EXPECT_EQ(Pearson(SumPairs(constant, targets)), 0);
  EXPECT_EQ(Pearson(SumPairs(targets, constant)), 0);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Pearson(SumPairs(std::vector<float>{kNan, 1}, std::vector<float>{0, 1})), 0);
}

}  // namespace
}  // namespace eps
