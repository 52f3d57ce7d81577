#ifndef EPS_PLANNER_PAPERS_L2L_MODEL_H_
#define EPS_PLANNER_PAPERS_L2L_MODEL_H_

// The cost model of "Training Large Neural Networks with Constant Memory" (L2L), section 2.2.1,
// and the memory of its sections 3.2 and 3.3. Nothing overlaps here: the paper's relay computes
// while it does not transfer. Equations 3 and 6 lose a factor N as they are printed, and equation
// 5 the u of its denominator; here they have them.

#include <cstdint>

#include "planner/units.h"

namespace eps::planner {

// One training step of a relay in the paper's symbols.
struct RelayStep {
  double layers = 1;         // N
  double micro_batches = 1;  // u
  double samples = 1;        // ub, of one micro-batch, over all devices
  Seconds compute;           // C: one layer's forward pass of a micro-batch
  Seconds transfer;          // X: one layer from the host to the device
  Seconds host;              // the EPS's own work that nothing hides: 0 in the paper's equations
};

// X = L / B and C = c / F (section 2.2.1).
Seconds LayerTransferTime(Bytes layer, BytesPerSecond link);
Seconds LayerComputeTime(Flops forward, FlopsPerSecond rate);

// N (u C + X): the forward passes of a step.
Seconds ForwardTime(const RelayStep& step);
// N (4 u C + 2 X) + host (equations 1 and 4): backward is 2 C, and C again for the recomputation.
Seconds TrainingTime(const RelayStep& step);
// u ub / time (equations 2, 3, 5 and 6), in samples per second.
PerSecond ForwardThroughput(const RelayStep& step);
PerSecond TrainingThroughput(const RelayStep& step);
// ub / (4 N C): what TrainingThroughput grows to with u.
PerSecond TrainingThroughputLimit(const RelayStep& step);
// The part of the time that is not computed in, against the part that is.
double ForwardOverhead(const RelayStep& step);
double TrainingOverhead(const RelayStep& step);

// Equations 5 and 6 as they are printed, for comparison.
PerSecond PrintedForwardThroughput(const RelayStep& step);
PerSecond PrintedTrainingThroughput(const RelayStep& step);

struct RelayTransfers {
  uint64_t weights = 0;    // layers that went to the device
  uint64_t gradients = 0;  // layers whose gradients came back
};
// Walks through a step of Algorithm 2 with room for one layer on the device. `keep_top`: the top
// layer stays there for its backward pass, which follows its forward pass.
RelayTransfers WalkRelay(uint64_t layers, bool keep_top);

// The input of one layer: samples * tokens * width values of `value` each.
Bytes LayerInput(uint64_t samples, uint64_t tokens, uint64_t width, Bytes value);

enum class StashHome { kDevice, kHost };
// Device memory of a step (Tables 3 and 4): `base`, what one micro-batch needs whatever the depth;
// an input per layer and micro-batch if the stash is on the device; and `in_flight` inputs for each
// micro-batch after the first.
struct RelayMemory {
  Bytes base;
  Bytes layer_input;
  StashHome stash = StashHome::kHost;
  double in_flight = 0;
};
Bytes DeviceMemory(const RelayMemory& memory, double layers, double micro_batches);

// Parameters of a model that a host's memory holds.
double HostCapacity(Bytes host, Bytes per_parameter);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_L2L_MODEL_H_
