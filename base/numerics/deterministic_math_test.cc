#include "base/numerics/deterministic_math.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr double kUlp = std::numeric_limits<double>::epsilon();

TEST(DeterministicMath, LogIsWithinAFewUlps) {
  for (int i = 1; i < 200'000; ++i) {
    const double x = i * 1.7e-5 * std::pow(10.0, i % 600 - 300);
    const double expected = std::log(x);
    ASSERT_NEAR(DeterministicLog(x), expected, 2 * kUlp * std::fabs(expected)) << x;
  }
  EXPECT_EQ(DeterministicLog(1.0), 0.0);
  EXPECT_NEAR(DeterministicLog(1.0 + 1e-10), std::log(1.0 + 1e-10), 1e-25);
}

TEST(DeterministicMath, ExpIsWithinAFewUlps) {
  for (int i = -200'000; i < 200'000; ++i) {
    const double x = i * 3.5e-3;
    const double expected = std::exp(x);
    ASSERT_NEAR(DeterministicExp(x), expected, 2 * kUlp * expected) << x;
  }
  EXPECT_EQ(DeterministicExp(0.0), 1.0);
  EXPECT_EQ(DeterministicExp(-1e9), 0.0);
  EXPECT_EQ(DeterministicExp(1e9), std::numeric_limits<double>::infinity());
}

TEST(DeterministicMath, CosPiIsAccurateAndExactAtHalves) {
  for (int i = -300'000; i < 300'000; ++i) {
    const double x = i * 3.3e-5;
    const double expected = static_cast<double>(std::cos(M_PIl * static_cast<long double>(x)));
    ASSERT_NEAR(DeterministicCosPi(x), expected, 2 * kUlp) << x;
  }
  EXPECT_EQ(DeterministicCosPi(0.0), 1.0);
  EXPECT_EQ(DeterministicCosPi(0.5), 0.0);
  EXPECT_EQ(DeterministicCosPi(1.0), -1.0);
  EXPECT_EQ(DeterministicCosPi(1.5), 0.0);
  EXPECT_EQ(DeterministicCosPi(1e15), 1.0);
}

TEST(DeterministicMath, GivesTheGoldenBits) {
  EXPECT_EQ(DeterministicLog(0.1), -0x1.26bb1bbb55515p+1);
  EXPECT_EQ(DeterministicLog(1e-15), -0x1.144f69ff9ffc4p+5);
  EXPECT_EQ(DeterministicLog(3.0), 0x1.193ea7aad030ap+0);
  EXPECT_EQ(DeterministicExp(-1.25), 0x1.25618372a584fp-2);
  EXPECT_EQ(DeterministicExp(10.0), 0x1.5829dcf95056p+14);
  EXPECT_EQ(DeterministicCosPi(0.1), 0x1.e6f0e134454ffp-1);
  EXPECT_EQ(DeterministicCosPi(0.7), -0x1.2cf2304755a5dp-1);
}

}  // namespace
}  // namespace eps
