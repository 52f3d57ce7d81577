#ifndef EPS_BASE_JOB_CUT_INTERVAL_H_
#define EPS_BASE_JOB_CUT_INTERVAL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

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

}  // namespace eps

#endif  // EPS_BASE_JOB_CUT_INTERVAL_H_
