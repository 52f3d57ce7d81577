#ifndef EPS_WORKER_STAGE_SPEED_H_
#define EPS_WORKER_STAGE_SPEED_H_

// How fast a device computes a block of GPT-2, forward and backward with recomputation: what
// `eps bench calibrate` puts into a description of the machine.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/options.h"

namespace eps {

struct StageSpeed {
  std::string profile;  // what the device is (TorchComputeProfile)
  // Of a micro-batch's forward and backward pass over a block, recomputation included, without what
  // every pass takes whatever it holds.
  double block_seconds = 0;
  double pass_seconds = 0;  // of one pass of a micro-batch, whatever it holds
  // The same of a block that is wide enough for large products. If the given one is, of that one
  // with more samples.
  uint32_t wide_width = 0;
  uint32_t wide_heads = 0;
  uint32_t wide_samples = 0;
  double wide_block_seconds = 0;
};

// Takes some seconds. Errors as NewTorchRuntime; InvalidArgument for a shape that is none.
absl::StatusOr<StageSpeed> MeasureStageSpeed(const CalibrateOptions& options);

// One line of JSON with the fields' names.
std::string StageSpeedToJson(const StageSpeed& speed);

}  // namespace eps

#endif  // EPS_WORKER_STAGE_SPEED_H_
