#ifndef EPS_WORKER_MODELS_PROGRAM_STAGE_H_
#define EPS_WORKER_MODELS_PROGRAM_STAGE_H_

// The stages of model programs. Jobs make them by NewModelStage (model_stages.h).

#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/exec/torch_stage.h"

namespace eps {

// Says whether products of tensors where `like` is add to the sums of gradients by themselves.
using SumRule = bool (*)(const at::Tensor& like);

// As TorchStageFactory. The rule of all jobs is AddsWithinProducts (gradient_sums.h); a test on a
// CPU gives that of a device.
absl::StatusOr<std::unique_ptr<TorchStage>> NewProgramStage(const JobSpec& spec, StageId stage,
                                                            SumRule adds_within);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_PROGRAM_STAGE_H_
