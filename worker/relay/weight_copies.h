#ifndef EPS_WORKER_RELAY_WEIGHT_COPIES_H_
#define EPS_WORKER_RELAY_WEIGHT_COPIES_H_

// The effect of quantization.backward_weights on a stage's weights in the worker
// (docs/quantization.md).

#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Returns whether a backward pass receives a second copy of this use's weights, along the other
// axis, as CodecTable::axes says for its chunks. REQUIRES that the codec of the weights is known.
bool HasSecondCopy(const JobSpec& spec, const TensorUse& use);

}  // namespace eps

#endif  // EPS_WORKER_RELAY_WEIGHT_COPIES_H_
