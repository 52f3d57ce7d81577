#include "base/plugin/check/trial_values.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace eps {
namespace {

using Limits = std::numeric_limits<float>;

// Returns a number of [-1, 1) times a power of 2 from 2^-11 to 1.
float UsualValue(uint64_t mixed) {
  const float unit = static_cast<float>(static_cast<int32_t>(mixed >> 32)) * 0x1p-31F;
  return std::ldexp(unit, -static_cast<int>(mixed % 12));
}

constexpr float kFiniteValues[] = {0.0F,
                                   -0.0F,
                                   Limits::denorm_min(),
                                   -Limits::denorm_min(),
                                   0x1p-127F,
                                   -0x1.8p-130F,
                                   Limits::min(),
                                   -Limits::min(),
                                   0x1p-63F,
                                   -0x1p-75F,
                                   1.0F,
                                   -1.0F,
                                   0x1p20F,
                                   -0x1p20F};
constexpr size_t kFiniteCount = sizeof(kFiniteValues) / sizeof(float);
constexpr float kWildValues[] = {0x1p50F,
                                 -0x1p50F,
                                 Limits::max(),
                                 -Limits::max(),
                                 Limits::infinity(),
                                 -Limits::infinity(),
                                 Limits::quiet_NaN()};
constexpr size_t kWildCount = sizeof(kWildValues) / sizeof(float);

}  // namespace

// The finalizer of SplitMix64.
uint64_t MixedNumber(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + index * 0xd1342543de82ef95 + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

float TrialValue(TrialValues values, uint64_t mixed) {
  const uint64_t kind = (mixed >> 20) % 64;
  if (values != TrialValues::kUsual && kind < kFiniteCount) return kFiniteValues[kind];
  // Rare, because they spoil an element for all later updates.
  if (values == TrialValues::kSpecial && kind < kFiniteCount + kWildCount) {
    return kWildValues[kind - kFiniteCount];
  }
  return UsualValue(mixed);
}

uint32_t BitsOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

bool SameBits(float a, float b) {
  return BitsOf(a) == BitsOf(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace eps
