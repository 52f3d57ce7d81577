#ifndef EPS_WORKER_RELAY_WEIGHT_COPIES_H_
#define EPS_WORKER_RELAY_WEIGHT_COPIES_H_

// What quantization.backward_weights makes of a stage's weights in the worker
// (docs/quantization.md).

#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Whether a backward pass gets the weights of this use a second time, along the other axis: as
// CodecTable::axes says of its chunks. REQUIRES that the codec of the weights is known.
bool HasSecondCopy(const JobSpec& spec, const TensorUse& use);

// Of decode_once: rounds the matrices of a stage to bf16 in place. Vectors keep what their codec
// gave: no product contracts them.
void RoundMatricesToBf16(const JobSpec& spec, const StageSpec& stage, HostStage* host);

}  // namespace eps

#endif  // EPS_WORKER_RELAY_WEIGHT_COPIES_H_
