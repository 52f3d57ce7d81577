#include "planner/simulator/draws.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace eps::planner::simulator {
namespace {

// Returns the failures at `rate` until `end`, thinned from points for rates up to `highest`.
std::vector<double> FailuresAt(double rate, double highest, double end) {
  FailurePoints points(7, DrawPurpose::kServerFailure, PerSecond(highest));
  std::vector<double> times;
  for (; points.next().at < Seconds(end); points.Take()) {
    if (points.next().height < PerSecond(rate)) times.push_back(points.next().at.value());
  }
  return times;
}

TEST(UniformDraw, IsUniformAndUsesTheWholeKey) {
  constexpr uint64_t kDraws = 100'000;
  double sum = 0;
  double squares = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = UniformDraw(1, DrawPurpose::kJitter, 0, i);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 0.005);
  const double draw = UniformDraw(1, DrawPurpose::kJitter, 0, 0);
  EXPECT_EQ(draw, UniformDraw(1, DrawPurpose::kJitter, 0, 0));
  EXPECT_NE(draw, UniformDraw(2, DrawPurpose::kJitter, 0, 0));
  EXPECT_NE(draw, UniformDraw(uint64_t{1} << 32 | 1, DrawPurpose::kJitter, 0, 0));
  EXPECT_NE(draw, UniformDraw(1, DrawPurpose::kServerFailure, 0, 0));
  EXPECT_NE(draw, UniformDraw(1, DrawPurpose::kJitter, 1, 0));
  EXPECT_NE(draw, UniformDraw(1, DrawPurpose::kJitter, 0, uint64_t{1} << 32));
}

// The median of the largest of n is the point that one draw exceeds with probability 1 - 2^(-1/n).
TEST(LargestLognormal, HasTheDistributionOfTheMaximum) {
  EXPECT_NEAR(LargestLognormal(0.5, 1, 0.3), 1, 1e-12);
  // Standard normal quantiles: z(0.8413447) = 1; 0.8413447^4 = 0.5010....
  const double below_1 = 0.841344746068543;
  EXPECT_NEAR(LargestLognormal(below_1, 1, 0.3), std::exp(0.3), 1e-9);
  EXPECT_NEAR(LargestLognormal(std::pow(below_1, 4), 4, 0.3), std::exp(0.3), 1e-9);
  EXPECT_NEAR(LargestLognormal(std::pow(below_1, 1000), 1000, 0.3), std::exp(0.3), 1e-6);
  EXPECT_EQ(LargestLognormal(0.9, 10, 0), 1);
  EXPECT_TRUE(std::isfinite(LargestLognormal(1 - 0x1p-53, 1e9, 3)));
}

TEST(FailurePoints, MatchTheirRate) {
  constexpr double kRate = 0.0123;
  constexpr double kEnd = 1e6;
  const std::vector<double> times = FailuresAt(kRate, kRate, kEnd);
  const double expected = kRate * kEnd;
  EXPECT_NEAR(static_cast<double>(times.size()), expected, 4 * std::sqrt(expected));
  // The mean of the squares of exponential gaps is 2 / rate^2.
  double squares = 0;
  for (size_t i = 1; i < times.size(); ++i) squares += std::pow(times[i] - times[i - 1], 2);
  EXPECT_NEAR(squares / static_cast<double>(times.size()) * kRate * kRate, 2, 0.15);
}

TEST(FailurePoints, OfALowerRateAreASubset) {
  constexpr double kEnd = 1e5;
  const std::vector<double> many = FailuresAt(0.01, 0.01, kEnd);
  for (const double rate : {0.008, 0.003, 0.0001}) {
    const std::vector<double> few = FailuresAt(rate, rate, kEnd);
    EXPECT_EQ(few, FailuresAt(rate, 10 * rate, kEnd));
    EXPECT_LT(few.size(), many.size());
    EXPECT_TRUE(std::includes(many.begin(), many.end(), few.begin(), few.end())) << rate;
  }
}

TEST(FailurePoints, NeverOccurAtRateZero) {
  FailurePoints points(7, DrawPurpose::kWorkerFailure, PerSecond(0));
  points.Take();
  EXPECT_EQ(points.next().at, Seconds(std::numeric_limits<double>::infinity()));
}

}  // namespace
}  // namespace eps::planner::simulator
