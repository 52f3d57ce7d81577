#ifndef EPS_WORKER_MEASURE_STEP_SPEED_H_
#define EPS_WORKER_MEASURE_STEP_SPEED_H_

// Measures how well a device overlaps transfers with computing: `eps bench gpu`. Times a training
// step of a GPT-2 by the worker's own relay against servers that answer at once, and in the same
// run its two halves alone: computing without transfers, and transfers without computing. A step
// cannot be faster than the slower half.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/options.h"

namespace eps {

// The result of a measurement. Times are medians over the steps.
struct StepSpeed {
  std::string device;  // TorchComputeProfile
  std::string precision;
  std::string gradient_sum;
  std::string keep;
  uint32_t layers = 0;
  uint32_t width = 0;
  uint64_t parameters = 0;
  uint64_t tokens = 0;  // of a step
  double step_seconds = 0;
  double compute_seconds = 0;
  double transfer_seconds = 0;
  uint64_t device_peak_bytes = 0;

  double over_slower_half() const;
};

// The values that are computed have no meaning. With options.precision bf16 or cmp, weights and
// gradients travel as bf16. If options.trace is not empty, writes one more step to that file in
// Chrome's JSON trace event format: a track for each thread and, from number 1048577, for each
// queue of the device. Errors as NewTorchRuntime; InvalidArgument for an invalid shape or file.
absl::StatusOr<StepSpeed> MeasureStepSpeed(const StepOptions& options);

// Returns one line of JSON: the fields, "step_s", "compute_s", "transfer_s" and "over_slower_half".
std::string StepSpeedToJson(const StepSpeed& speed);

}  // namespace eps

#endif  // EPS_WORKER_MEASURE_STEP_SPEED_H_
