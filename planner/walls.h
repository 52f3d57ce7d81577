#ifndef EPS_PLANNER_WALLS_H_
#define EPS_PLANNER_WALLS_H_

// The bounds of a step of a worker with a device, by the number of tokens in the step. While a
// worker goes up and while it comes down, every resource works on all stages, so that a pass takes
// as long as its slowest resource: its wall. More tokens per step (training.micro_batches) lengthen
// the computation and the stash, and nothing else; a wall binds up to a number of tokens, and the
// next one above it. With P parameters, T tokens, F operations per second, B bytes per second on
// each direction of the device's link, D of the host's memory, W workers, BF16 on the wire and
// AdamW:
//
//   forward = max(2 P T / F, 2 P / B, (6 + 2 W) P / D)
//   backward = max(6 P T / F, 2 P / B, (30 + 6 W) P / D)
//
// if the updates are eager. In mode sealed they move from the backward pass to the front of the
// next forward pass. The model is that of planner/step_model.h without the order of its
// activities; a step also takes the time at its border, in which little overlaps. Pure functions.

#include <vector>

#include "planner/step_model.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner {

// The work of one resource in a pass over all stages.
struct Wall {
  Resource resource = Resource::kWorkerCompute;
  Seconds fixed;    // whatever the number of tokens
  Seconds growing;  // in proportion to the tokens, for those of the plan

  // `share`: of the plan's tokens.
  Seconds at(double share) const { return fixed + share * growing; }
};

// The resource that bounds a pass over a range of tokens.
struct WallRange {
  Resource resource = Resource::kWorkerCompute;
  double to = 0;  // tokens of a step, over all parts; infinite for the last range
};

// One direction of a step.
struct PassWalls {
  Seconds bound;                  // of the pass, at the tokens of the plan
  std::vector<WallRange> ranges;  // from 0 tokens upwards, at least one
};

// Both directions of a step.
struct StepWalls {
  PassWalls forward;
  PassWalls backward;

  Seconds bound() const { return forward.bound + backward.bound; }
};

// `estimate` is that of `work`, which has a stage. REQUIRES a step whose worker does not share its
// cores with servers: there all work adds up, and no pass has a wall of its own.
StepWalls WallsOf(const Workload& work, const StepEstimate& estimate);

// Returns the ranges of `walls`, which are not empty; `tokens` are those of the plan.
std::vector<WallRange> RangesOf(const std::vector<Wall>& walls, double tokens);

}  // namespace eps::planner

#endif  // EPS_PLANNER_WALLS_H_
