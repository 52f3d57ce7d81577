#ifndef EPS_BASE_JOB_LAYOUT_STEP_MEMORY_H_
#define EPS_BASE_JOB_LAYOUT_STEP_MEMORY_H_

// Memory that a step needs where it is computed. Workers and plans use the same formulas. Pure
// functions.

#include <cstdint>

#include "base/job/job_spec.h"

namespace eps {

// Returns the bytes that the backward pass of one micro-batch keeps in addition to weights, in
// FP32, for the larger of a block and the head. `spec` must have at least two stages.
double ActivationBytes(const JobSpec& spec);

// Returns the most gradients of a stage that exist at a time while those of its micro-batches are
// added (training.gradient_sum): the sums, with the newest gradient.
uint32_t SummedGradients(const TrainingSpec& training);

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_STEP_MEMORY_H_
