#ifndef EPS_WORKER_MODELS_PROGRAM_TENSORS_H_
#define EPS_WORKER_MODELS_PROGRAM_TENSORS_H_

// The inputs of a stage of a model program that are not weights. Pure functions; those that return
// tensors throw what LibTorch throws.

#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/models/model_program.h"
#include "worker/relay/stage_program.h"

namespace eps {

// The constants of a stage, on the CPU.
std::vector<at::Tensor> ProgramConstants(const ModelProgram& program,
                                         const ProgramStageSpec& stage);

// The columns that the calls read, on the device of `like`. Throws if the micro-batch lacks one,
// or if its documents share rows and the program does not separate them.
std::vector<at::Tensor> ProgramColumns(const ModelProgram& program, const CallList& calls,
                                       const MicroBatch& batch, const at::Tensor& like);

// InvalidArgument if the stage of the job does not have the tensors of its program.
absl::Status CheckProgramLayout(const JobSpec& spec, StageId stage);

}  // namespace eps

#endif  // EPS_WORKER_MODELS_PROGRAM_TENSORS_H_
