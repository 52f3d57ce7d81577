#ifndef EPS_VERIFY_TESTING_STAGE_CHAIN_H_
#define EPS_VERIFY_TESTING_STAGE_CHAIN_H_

// For tests only.

#include "base/job/job_spec.h"
#include "verify/reference_model.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Runs one micro-batch through a worker's stage programs, one loaded stage at a time: forward with
// a stash, backward with recomputation. `for_input_gradient` holds the second copies, where the
// spec asks for them.
MicroBatchResult RunStagePrograms(const JobSpec& spec, StageRuntime* runtime,
                                  const StageInputs& weights, const StageInputs& for_input_gradient,
                                  const MicroBatch& batch);

}  // namespace eps

#endif  // EPS_VERIFY_TESTING_STAGE_CHAIN_H_
