#ifndef EPS_WORKER_MODELS_MODEL_STAGES_H_
#define EPS_WORKER_MODELS_MODEL_STAGES_H_

// The models that LibTorch computes.

#include <memory>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/exec/torch_runtime.h"

namespace eps {

// Makes the program of one stage of the job's model; NewTorchRuntime takes this function. `spec`
// outlives the stage. InvalidArgument names a model.type that LibTorch does not compute, or a
// tensor that the stage lacks.
absl::StatusOr<std::unique_ptr<TorchStage>> NewModelStage(const JobSpec& spec, StageId stage);

// Makes NewModelStage compute the models of one type. The file of each program defines one of these
// as a static object; no other file names the program.
class ProgramRegistration {
 public:
  ProgramRegistration(ModelType type, TorchStageFactory new_stage);
};

}  // namespace eps

#endif  // EPS_WORKER_MODELS_MODEL_STAGES_H_
