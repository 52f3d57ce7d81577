#ifndef EPS_CLI_MEASURE_BENCH_GPU_H_
#define EPS_CLI_MEASURE_BENCH_GPU_H_

// `eps bench gpu`: how well this machine's device trains a GPT-2 of a given shape, if the servers
// were infinitely fast. Runs `eps-worker step` (worker/measure/step_speed.h) at two depths.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eps {

// The answer of `eps-worker step`. Times are seconds.
struct StepAnswer {
  std::string device;
  uint32_t layers = 0;
  uint64_t parameters = 0;
  uint64_t tokens = 0;
  double step = 0;
  double compute = 0;
  double transfer = 0;
  uint64_t device_peak = 0;  // bytes
};
// Internal names the field that is missing or of another type.
absl::StatusOr<StepAnswer> ReadStepAnswer(const nlohmann::json& answer);

// The result: the shape that was asked for, and the same with twice as many layers.
struct GpuBench {
  StepAnswer shape;
  StepAnswer deeper;
  double peak_flops = 0;  // of the device per second, in the precision; 0 if unknown

  // 6 operations for each parameter and token, relative to the peak; 0 if that is unknown.
  double mfu() const;
  double over_slower_half() const;
  // Whether the device's memory grows by at most 1 %.
  bool is_flat() const;
};

std::string GpuBenchText(const GpuBench& bench);
std::string GpuBenchJson(const GpuBench& bench);

// `arguments` are those after "bench gpu": those of `eps-worker step`, --hardware=NAME or FILE for
// the device's peak, and --json. If the device's memory grows with depth, the status carries
// ExitCode::kDifferent and no text.
absl::Status RunBenchGpu(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_BENCH_GPU_H_
