#ifndef EPS_OPTIMIZER_TRUST_RATIO_H_
#define EPS_OPTIMIZER_TRUST_RATIO_H_

// The trust ratio, by which an optimizer that adapts scales the step of a tensor (LAMB: You et al.,
// "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020, algorithm 2).

#include "base/job/job_spec.h"
#include "optimizer/update_request.h"

namespace eps {

// Whether tensors of the group have trust ratios. Others have ratio 1: usually vectors, norms and
// biases, which have no weight decay. REQUIRES an optimizer that adapts.
inline bool HasTrustRatio(const OptimizerSpec& spec, const ParameterGroup& group) {
  return spec.always_adapt || group.weight_decay > 0;
}

// Returns |weights| / |steps| of a whole tensor; 1 if one of them is 0, or if the ratio is not a
// finite float.
double TrustRatio(const SegmentSquares& tensor);

}  // namespace eps

#endif  // EPS_OPTIMIZER_TRUST_RATIO_H_
