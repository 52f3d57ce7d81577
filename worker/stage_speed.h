#ifndef EPS_WORKER_STAGE_SPEED_H_
#define EPS_WORKER_STAGE_SPEED_H_

// Measures how fast a device computes a block of GPT-2, forward and backward with recomputation.
// `eps bench calibrate` writes the result into a description of the machine.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/options.h"

namespace eps {

// The result of a measurement.
struct StageSpeed {
  std::string profile;  // the device (TorchComputeProfile)
  // Of a micro-batch's forward and backward pass over a block, including recomputation, without the
  // fixed time of each pass.
  double block_seconds = 0;
  double pass_seconds = 0;  // fixed time of one pass of a micro-batch, whatever its size
  // The same for a block that is wide enough for large products. If the given block is, these are
  // for it with more samples.
  uint32_t wide_width = 0;
  uint32_t wide_heads = 0;
  uint32_t wide_samples = 0;
  double wide_block_seconds = 0;
  double wide_block_bf16_seconds = 0;  // the same in BF16
  // Of a device; 0 for a CPU. Both links are busy while they are measured.
  uint64_t device_memory = 0;             // bytes
  double to_device_bytes_per_second = 0;  // of FP32 weights, from pinned memory
  double from_device_bytes_per_second = 0;
};

// Takes some seconds. Errors as NewTorchRuntime; InvalidArgument for an invalid shape.
absl::StatusOr<StageSpeed> MeasureStageSpeed(const CalibrateOptions& options);

// Returns one line of JSON with the fields' names.
std::string StageSpeedToJson(const StageSpeed& speed);

}  // namespace eps

#endif  // EPS_WORKER_STAGE_SPEED_H_
