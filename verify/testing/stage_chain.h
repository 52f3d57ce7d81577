#ifndef EPS_VERIFY_TESTING_STAGE_CHAIN_H_
#define EPS_VERIFY_TESTING_STAGE_CHAIN_H_

// Only for tests.

#include "base/job/job_spec.h"
#include "verify/reference_model.h"
#include "worker/relay/stage_program.h"

namespace eps {

// One micro-batch through the programs of a worker, one stage loaded at a time: forward with a
// stash, backward with recomputation. `for_input_gradient`: the second copies, where the spec says
// that there are any.
MicroBatchResult RunStagePrograms(const JobSpec& spec, StageRuntime* runtime,
                                  const StageInputs& weights, const StageInputs& for_input_gradient,
                                  const MicroBatch& batch);

}  // namespace eps

#endif  // EPS_VERIFY_TESTING_STAGE_CHAIN_H_
