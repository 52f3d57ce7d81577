#ifndef EPS_VERIFY_STAGE_PROGRAMS_H_
#define EPS_VERIFY_STAGE_PROGRAMS_H_

// A worker's stage programs as a model of the whole network: one stage after another, forward and
// backward, without relay, wire, overlap or several parts. It shares the arithmetic of a stage with
// the worker, and nothing else; so it verifies runs whose bits only their device computes.

#include <memory>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "verify/reference_model.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Runs one micro-batch. `for_input_gradient` holds the second copies, where the spec asks for them.
// Gradients of frozen tensors are zeros.
absl::StatusOr<MicroBatchResult> RunStagePrograms(const JobSpec& spec, StageRuntime* runtime,
                                                  const StageInputs& weights,
                                                  const StageInputs& for_input_gradient,
                                                  const MicroBatch& batch, int loss_scale_log2);

// Returns the model on the device of `options`. `spec` must outlive it. Errors as NewTorchRuntime.
absl::StatusOr<std::unique_ptr<ReferenceModel>> NewStagePrograms(const JobSpec& spec,
                                                                 const RuntimeOptions& options);

}  // namespace eps

#endif  // EPS_VERIFY_STAGE_PROGRAMS_H_
