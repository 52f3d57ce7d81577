#include "worker/exec/cuda/loss_arithmetic.h"

#include <cmath>
#include <limits>

#include "base/numerics/flush_denormals.h"
#include "gtest/gtest.h"

namespace eps::loss_arithmetic {
namespace {

using elementwise::BitsOf;
using elementwise::FloatOf;

constexpr double kLeastNormal = 0x1p-126;

// Returns the distance in units in the last place of the floats at `exact`. REQUIRES a normal
// `exact`.
double UlpsBetween(float got, double exact) {
  int exponent;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, exponent - 24);
}

TEST(LossArithmeticTest, ExpIsWithinItsError) {
  double largest = 0;
  uint32_t largest_at = 0;
  // From -0 to -104, with an odd step, so that all low bits occur.
  for (uint32_t bits = 0x80000000u; bits <= BitsOf(-104.0f); bits += 97) {
    const float x = FloatOf(bits);
    const double exact = std::exp(static_cast<double>(x));
    const float got = ExpOne(x);
    if (exact < kLeastNormal) {
      ASSERT_TRUE(got == 0 || got == static_cast<float>(kLeastNormal)) << x << " gives " << got;
      continue;
    }
    // Rounding to a denormal gives 0.
    if (got == 0 && exact < kLeastNormal * (1 + 0x1p-23)) continue;
    const double ulps = UlpsBetween(got, exact);
    if (ulps > largest) {
      largest = ulps;
      largest_at = bits;
    }
  }
  EXPECT_LE(largest, 1.02) << FloatOf(largest_at);
  EXPECT_GT(largest, 0.5) << "better than rounding: the test measures nothing";
}

TEST(LossArithmeticTest, ExpAtItsEnds) {
  EXPECT_EQ(BitsOf(ExpOne(0.0f)), BitsOf(1.0f));
  EXPECT_EQ(BitsOf(ExpOne(-0.0f)), BitsOf(1.0f));
  EXPECT_EQ(BitsOf(ExpOne(-std::numeric_limits<float>::denorm_min())), BitsOf(1.0f));
  for (const float x : {-88.0f, -104.0f, -1e30f, -std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(BitsOf(ExpOne(x)), 0u) << x;
  }
  for (float x = -87.33f; x > -87.35f; x = std::nextafterf(x, -100)) {
    EXPECT_EQ(BitsOf(ExpOne(x)), elementwise::Flushed(BitsOf(ExpOne(x)))) << x;
  }
}

TEST(LossArithmeticTest, LogIsWithinItsError) {
  double largest = 0;
  uint32_t largest_at = 0;
  EXPECT_EQ(BitsOf(LogOne(1.0f)), 0u);
  for (uint32_t bits = BitsOf(1.0f) + 1; bits <= BitsOf(0x1p33f); bits += 97) {
    const double ulps = UlpsBetween(LogOne(FloatOf(bits)), std::log(double{FloatOf(bits)}));
    if (ulps > largest) {
      largest = ulps;
      largest_at = bits;
    }
  }
  EXPECT_LE(largest, 0.9) << FloatOf(largest_at);
  EXPECT_GT(largest, 0.5) << "better than rounding: the test measures nothing";
}

TEST(LossArithmeticTest, DoesNotDependOnTheDenormalMode) {
  for (uint32_t bits = 0x80000000u; bits <= BitsOf(-104.0f); bits += 9973) {
    const uint32_t exp = BitsOf(ExpOne(FloatOf(bits)));
    const float x = 1 + FloatOf(bits & 0x7fffffffu);
    const uint32_t log = BitsOf(LogOne(x));
    const ScopedFlushDenormals flush;
    ASSERT_EQ(BitsOf(ExpOne(FloatOf(bits))), exp) << FloatOf(bits);
    ASSERT_EQ(BitsOf(LogOne(x)), log) << x;
  }
}

// Returns the sum of `n` results of ExpOne, the first of which is 1 if `one`.
template <class Sum>
void AddMany(bool one, int n, Sum add) {
  for (int i = 0; i < n; ++i) add(one && i == 0 ? 1.0f : ExpOne(-0.001f * static_cast<float>(i)));
}

TEST(LossArithmeticTest, SumsKeepTheirPrecision) {
  for (const bool one : {false, true}) {
    for (const float scale : {1.0f, 0x1p-100f}) {
      CompensatedSum sum;
      double exact = 0;
      AddMany(one, 80000, [&](float value) {
        sum.Add(value * scale);
        exact += value * scale;
      });
      EXPECT_LE(std::fabs(sum.Get() - exact), 0x1p-23 * exact) << one << " " << scale;
    }
  }
  CompensatedSum ones;
  for (int i = 0; i < (1 << 24) + 8; ++i) ones.Add(1);
  EXPECT_EQ(ones.Get(), 0x1p24f + 8) << "more ones than a float counts";
}

TEST(LossArithmeticTest, SumsOfTinyValuesHaveNoDenormals) {
  const auto sum_of_tiny = [] {
    CompensatedSum sum;
    for (int i = 0; i < 10000; ++i)
      sum.Add((1 + 0x1.23456p-3f * static_cast<float>(i % 7)) * 0x1p-126f);
    return BitsOf(sum.Get());
  };
  const uint32_t expected = sum_of_tiny();
  const ScopedFlushDenormals flush;
  EXPECT_EQ(sum_of_tiny(), expected);
}

}  // namespace
}  // namespace eps::loss_arithmetic
