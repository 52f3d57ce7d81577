#ifndef EPS_WORKER_STAGE_SPEED_H_
#define EPS_WORKER_STAGE_SPEED_H_

// How fast a device computes a block of GPT-2, forward and backward with recomputation: what
// `eps bench calibrate` puts into a description of the machine.

#include <string>

#include "absl/status/statusor.h"
#include "worker/options.h"

namespace eps {

struct StageSpeed {
  std::string profile;               // what the device is (TorchComputeProfile)
  double flops_per_second = 0;       // of a block of this width, as planner/workload.h counts them
  double pass_seconds = 0;           // of a pass of a micro-batch, whatever it holds
  double wide_flops_per_second = 0;  // of a block that is wide enough for large products
};

// Takes some seconds. Errors as NewTorchRuntime; InvalidArgument for a shape that is none.
absl::StatusOr<StageSpeed> MeasureStageSpeed(const CalibrateOptions& options);

// One line of JSON with the fields' names.
std::string StageSpeedToJson(const StageSpeed& speed);

}  // namespace eps

#endif  // EPS_WORKER_STAGE_SPEED_H_
