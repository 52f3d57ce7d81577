#ifndef EPS_BASE_JOB_LAYOUT_STEP_MEMORY_H_
#define EPS_BASE_JOB_LAYOUT_STEP_MEMORY_H_

// Memory that a step needs where it is computed. Workers and plans use the same formulas. Pure
// functions.

#include <cstdint>

#include "base/ids.h"
#include "base/job/job_spec.h"

namespace eps {

// Returns the bytes that the backward pass of one micro-batch keeps in addition to weights, in
// FP32, for the larger of a block and the head. `spec` must have at least two stages.
double ActivationBytes(const JobSpec& spec);

// Returns the most gradients of a stage that exist at a time while those of its micro-batches are
// added (training.gradient_sum): the sums, with the newest gradient.
uint32_t SummedGradients(const TrainingSpec& training);

// Returns whether a stage can keep what its forward pass computes until its backward pass
// (worker.keep). The first and the last stage have nothing to keep. The graph of a program refers
// to the weights of the forward pass, which lack second copies.
bool CanKeep(const JobSpec& spec, StageId stage);

// Returns the most bytes that a stage keeps on the device for as many micro-batches; activations
// count as FP32.
double KeptBytes(const JobSpec& spec, StageId stage, uint64_t micro_batches);

// Returns the lowest stage from which on all that can keep, do; the last stage if none does. `room`
// bytes serve the last ones first.
StageId FirstKeptStage(const JobSpec& spec, uint64_t micro_batches, double room);

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_STEP_MEMORY_H_
