#ifndef EPS_BASE_PLUGIN_CHECK_TRIAL_VALUES_H_
#define EPS_BASE_PLUGIN_CHECK_TRIAL_VALUES_H_

// The numbers of trials, and how their results are compared.

#include <cstddef>
#include <cstdint>

namespace eps {

// The callers that may call a plug-in at once, each with its own number below this one.
inline constexpr size_t kTrialCallers = 4;
// Trials of all lengths up to it show what happens at the ends of vectors.
inline constexpr size_t kShortLengths = 67;

// The values of elements.
enum class TrialValues {
  kUsual,    // small
  kFinite,   // any of at most 2^20, denormals and zeros among them
  kSpecial,  // also 2^50, infinities and NaN
};

// Returns a well mixed number for each index.
uint64_t MixedNumber(uint64_t seed, uint64_t index);
// Returns the value that a mixed number chooses.
float TrialValue(TrialValues values, uint64_t mixed);

uint32_t BitsOf(float value);
// Whether the bits are equal, or both values are NaN.
bool SameBits(float a, float b);

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_TRIAL_VALUES_H_
