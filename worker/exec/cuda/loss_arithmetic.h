#ifndef EPS_WORKER_EXEC_CUDA_LOSS_ARITHMETIC_H_
#define EPS_WORKER_EXEC_CUDA_LOSS_ARITHMETIC_H_

// exp, log and a sum in FP32, of + - * / and integers alone, for nvcc and for a C++ compiler: a
// device's own expf and logf differ from the CPU's. They depend on no rounding of denormals: an
// operation whose result could be one is followed by a flush, or is exact.
//
// Both reduce the argument as Cody and Waite do (Software Manual for the Elementary Functions,
// 1980): ln 2 is a sum of two floats, of which the first has 15 significant bits, so that its
// product with an exponent is exact. The polynomials are the power series of exp and atanh,
// truncated where the remainder is below a tenth of a unit in the last place.

#include <cstdint>

#include "worker/exec/cuda/elementwise.h"

namespace eps::loss_arithmetic {

constexpr float kLn2High = 0x1.62e4p-1f;
constexpr float kLn2Low = 0x1.7f7d1cp-20f;
constexpr float kOneByLn2 = 0x1.715476p+0f;
constexpr float kLeastExponent = -0x1.5d58ap+6f;  // about -126 ln 2
constexpr float kRootOf2 = 0x1.6a09e6p+0f;

// Returns 2^exponent. REQUIRES -126 <= exponent <= 127.
EPS_HOST_DEVICE inline float PowerOf2(int exponent) {
  return elementwise::FloatOf(static_cast<uint32_t>(exponent + 127) << 23);
}

// Returns e^x with an error of at most 1.02 units in the last place (over all floats), and 0 where
// that is below the least normal float, 2^-126. REQUIRES x <= 0 (or -infinity, not NaN).
EPS_HOST_DEVICE inline float ExpOne(float x) {
  if (x < kLeastExponent) return 0;
  // x = k ln 2 + r with |r| <= ln 2 / 2, but for a rounding.
  const int k = static_cast<int>(x * kOneByLn2 - 0.5f);
  const float exponent = static_cast<float>(k);
  const float r = (x - exponent * kLn2High) - exponent * kLn2Low;
  float series = 0x1.a01a02p-13f;  // 1/7!, 1/6!, ...
  series = series * r + 0x1.6c16c2p-10f;
  series = series * r + 0x1.111112p-7f;
  series = series * r + 0x1.555556p-5f;
  series = series * r + 0x1.555556p-3f;
  series = series * r + 0.5f;
  const float value = 1.0f + (r + r * r * series);
  return elementwise::FlushedFloat(value * PowerOf2(k));
}

// Returns ln x with an error of at most 0.9 units in the last place, over all floats up to 2^34.
// REQUIRES x normal, finite, at least 1.
EPS_HOST_DEVICE inline float LogOne(float x) {
  // x = 2^k m with sqrt(1/2) <= m < sqrt(2); ln m = 2 atanh(s), s = (m - 1) / (m + 1).
  const uint32_t bits = elementwise::BitsOf(x);
  int k = static_cast<int>(bits >> 23) - 127;
  float m = elementwise::FloatOf((bits & 0x7fffffu) | 0x3f800000u);
  if (m >= kRootOf2) {
    m = m * 0.5f;
    ++k;
  }
  const float f = m - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s;
  float series = 0x1.c71c72p-4f;  // 1/9, 1/7, 1/5, 1/3
  series = series * z + 0x1.24924ap-3f;
  series = series * z + 0x1.99999ap-3f;
  series = series * z + 0x1.555556p-2f;
  series = series * z;
  // 2 s = f - s f, of which f is exact: the rounding of the quotient touches only the small part.
  const float small = s * (2.0f * series - f);
  const float exponent = static_cast<float>(k);
  return exponent * kLn2High + (f + (small + exponent * kLn2Low));
}

// A sum of results of ExpOne whose error is about 2 roundings, whatever their number: the rounding
// error of each addition is subtracted from the next value (Kahan, CACM 8, 1965). Values count
// 2^24-fold, so that a rounding error is no denormal.
class CompensatedSum {
 public:
  EPS_HOST_DEVICE void Add(float value) {
    const float corrected = value * 0x1p24f - error_;
    const float sum = sum_ + corrected;
    error_ = (sum - sum_) - corrected;
    sum_ = sum;
  }
  EPS_HOST_DEVICE float Get() const { return sum_ * 0x1p-24f; }

 private:
  float sum_ = 0;
  float error_ = 0;
};

}  // namespace eps::loss_arithmetic

#endif  // EPS_WORKER_EXEC_CUDA_LOSS_ARITHMETIC_H_
