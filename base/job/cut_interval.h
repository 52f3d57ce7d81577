#ifndef EPS_BASE_JOB_CUT_INTERVAL_H_
#define EPS_BASE_JOB_CUT_INTERVAL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

namespace eps {

// storage.cut_steps=auto: steps from one cut to the next, 1 to 1,000, so that cuts cost less than
// 1 % of the time. The estimate adds the time from each border until the cut is durable, as if
// training waited for it, and the processor time of the servers, which is less than that
// (docs/benchmarks.md, "What cuts cost"). REQUIRES step_seconds > 0.
inline uint64_t AutoCutSteps(double cut_seconds, double step_seconds) {
  constexpr double kTimesTheCut = 250;  // 0.4 % each
  constexpr double kLongest = 1000;
  const double steps = std::ceil(kTimesTheCut * cut_seconds / step_seconds);
  return static_cast<uint64_t>(std::min(std::max(steps, 1.0), kLongest));
}

// storage.cut_seconds: returns the most seconds from one cut to the next. A cut that takes longer
// than a tenth of the limit extends it, so that the limit makes cuts cost at most 10 % of the time.
inline double CutSeconds(double limit, double cut_seconds) {
  constexpr double kTimesTheCut = 10;
  return std::max(limit, kTimesTheCut * cut_seconds);
}

// Returns the steps from one cut to the next where cuts and steps always take so long; 0 if only
// the last step is cut. `cut_steps` is absent for auto; 0 sets no interval, as does a `limit` of 0
// seconds. REQUIRES step_seconds > 0.
inline uint64_t StepsBetweenCuts(std::optional<uint64_t> cut_steps, double limit,
                                 double cut_seconds, double step_seconds) {
  constexpr double kLongest = 1e9;
  const uint64_t steps = cut_steps.value_or(AutoCutSteps(cut_seconds, step_seconds));
  if (limit <= 0) return steps;
  const double by_time = std::ceil(CutSeconds(limit, cut_seconds) / step_seconds);
  const auto most = static_cast<uint64_t>(std::min(std::max(by_time, 1.0), kLongest));
  return steps == 0 ? most : std::min(steps, most);
}

}  // namespace eps

#endif  // EPS_BASE_JOB_CUT_INTERVAL_H_
