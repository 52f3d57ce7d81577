#ifndef EPS_PLANNER_PAPERS_L2L_MODEL_H_
#define EPS_PLANNER_PAPERS_L2L_MODEL_H_

// The cost model of "Training Large Neural Networks with Constant Memory" (L2L), section 2.2.1, and
// the memory of its sections 3.2 and 3.3. Nothing overlaps in this model: the relay either computes
// or transfers. As printed, equations 3 and 6 lack a factor N and equation 5 lacks the u of its
// denominator; the functions here include them.

#include <cstdint>

#include "planner/units.h"

namespace eps::planner {

// One training step of a relay in the paper's symbols.
struct RelayStep {
  double layers = 1;         // N
  double micro_batches = 1;  // u
  double samples = 1;        // ub: samples of one micro-batch, over all devices
  Seconds compute;           // C: one layer's forward pass of a micro-batch
  Seconds transfer;          // X: one layer from the host to the device
  Seconds host;              // the EPS's own exposed work: 0 in the paper's equations
};

// X = L / B and C = c / F (section 2.2.1).
Seconds LayerTransferTime(Bytes layer, BytesPerSecond link);
Seconds LayerComputeTime(Flops forward, FlopsPerSecond rate);

// Returns the time of the forward passes of a step: N (u C + X).
Seconds ForwardTime(const RelayStep& step);
// Returns N (4 u C + 2 X) + host (equations 1 and 4): a backward pass takes 2 C, and the
// recomputation another C.
Seconds TrainingTime(const RelayStep& step);
// Return u ub / time (equations 2, 3, 5 and 6), in samples per second.
PerSecond ForwardThroughput(const RelayStep& step);
PerSecond TrainingThroughput(const RelayStep& step);
// Returns ub / (4 N C), the limit of TrainingThroughput for large u.
PerSecond TrainingThroughputLimit(const RelayStep& step);
// Return the ratio of the time without computation to the time with computation.
double ForwardOverhead(const RelayStep& step);
double TrainingOverhead(const RelayStep& step);

// Equations 5 and 6 as they are printed, for comparison.
PerSecond PrintedForwardThroughput(const RelayStep& step);
PerSecond PrintedTrainingThroughput(const RelayStep& step);

// The transfers of one step.
struct RelayTransfers {
  uint64_t weights = 0;    // layers sent to the device
  uint64_t gradients = 0;  // layers whose gradients were sent back
};
// Counts the transfers of one step of Algorithm 2 with room for one layer on the device. With
// `keep_top`, the top layer stays on the device between its forward and its backward pass.
RelayTransfers WalkRelay(uint64_t layers, bool keep_top);

// Returns the size of one layer's input: samples * tokens * width values of `value` bytes each.
Bytes LayerInput(uint64_t samples, uint64_t tokens, uint64_t width, Bytes value);

enum class StashHome { kDevice, kHost };
// The device memory of a step (Tables 3 and 4): `base`, which one micro-batch needs at any depth;
// one input per layer and micro-batch if the stash is on the device; and `in_flight` inputs for
// each micro-batch after the first.
struct RelayMemory {
  Bytes base;
  Bytes layer_input;
  StashHome stash = StashHome::kHost;
  double in_flight = 0;
};
Bytes DeviceMemory(const RelayMemory& memory, double layers, double micro_batches);

// Returns the number of parameters that the host's memory holds.
double HostCapacity(Bytes host, Bytes per_parameter);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_L2L_MODEL_H_
