#include "base/numerics/deterministic_math.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace eps {
namespace {

// ln 2 as a sum: the first term has its 20 lowest bits 0, so that a product with an exponent is
// exact.
constexpr double kLn2High = 0x1.62e42fefp-1;
constexpr double kLn2Low = 0x1.473de6af278edp-34;
constexpr double kPi = 0x1.921fb54442d18p+1;

double FromBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint64_t ToBits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// sin(pi * x) and cos(pi * x) for 0 <= x <= 1/4 by their power series.
double SinPiSmall(double x) {
  const double y = kPi * x;
  const double z = y * y;
  double sum = 0.0;
  for (int n = 17; n >= 3; n -= 2) sum = (1.0 + sum) * (-z / (n * (n - 1)));
  return y + y * sum;
}

double CosPiSmall(double x) {
  const double y = kPi * x;
  const double z = y * y;
  double sum = 0.0;
  for (int n = 18; n >= 2; n -= 2) sum = (1.0 + sum) * (-z / (n * (n - 1)));
  return 1.0 + sum;
}

}  // namespace

double DeterministicLog(double x) {
  // x = 2^exponent * m with sqrt(1/2) <= m < sqrt(2); log m = 2 atanh((m - 1) / (m + 1)).
  const uint64_t bits = ToBits(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = FromBits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m >= 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++exponent;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 0.0;
  for (int n = 23; n >= 3; n -= 2) series = z * (1.0 / n + series);
  // 2 s = f - s f, of which f is exact: the rounding of the quotient touches only the small part.
  const double small = s * (2.0 * series - f);
  return exponent * kLn2High + (f + (small + exponent * kLn2Low));
}

double DeterministicExp(double x) {
  if (x < -708.0) return 0.0;
  if (x > 709.0) return std::numeric_limits<double>::infinity();
  // x = k ln 2 + r with |r| <= ln 2 / 2.
  const double scaled = x / (kLn2High + kLn2Low);
  const int k = static_cast<int>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 0.0;
  for (int n = 14; n >= 2; --n) sum = (1.0 + sum) * (r / n);
  const double value = 1.0 + (r + r * sum);
  // 2^1023 at most, although 709 / ln 2 rounds to 1023.
  return value * FromBits(static_cast<uint64_t>(k + 1023) << 52);
}

double DeterministicCosPi(double x) {
  if (x < 0) x = -x;
  x -= 2.0 * static_cast<double>(static_cast<uint64_t>(x / 2.0));  // exact: into [0, 2)
  if (x > 1.0) x = 2.0 - x;
  const bool negative = x > 0.5;
  if (negative) x = 1.0 - x;
  const double value = x <= 0.25 ? CosPiSmall(x) : SinPiSmall(0.5 - x);
  return negative ? -value : value;
}

}  // namespace eps
