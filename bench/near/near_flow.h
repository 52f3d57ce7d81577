#ifndef EPS_BENCH_NEAR_NEAR_FLOW_H_
#define EPS_BENCH_NEAR_NEAR_FLOW_H_

#include "bench/near/near_variant.h"

namespace eps {

// Simulates a step with flows that share links (planner/papers/flow_network.h), as the variant
// moves chunks: without the rounds of the authors' public code, which planner/papers simulates. Of
// `chunks` chunks, chunk i is on device i mod n. The seconds are those of the whole model.
NearStep SimulateNear(const NearVariant& variant, const NearJob& job, int chunks);

}  // namespace eps

#endif  // EPS_BENCH_NEAR_NEAR_FLOW_H_
