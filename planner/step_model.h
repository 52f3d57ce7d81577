#ifndef EPS_PLANNER_STEP_MODEL_H_
#define EPS_PLANNER_STEP_MODEL_H_

// How long a step takes: the relay of stages over the resources that it uses, each of which does
// one thing after another. Steady state, no failures, all workers of a kind alike
// (docs/planning.md; planner/simulator has stragglers and failures). A pure function.

#include <cstdint>
#include <string>
#include <vector>

#include "planner/hardware.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner {

// How the run uses the machines.
struct RunShape {
  uint32_t workers = 1;  // processes, each with `parts` / workers parts, rounded up
  uint32_t servers = 1;  // processes, spread over the server machines
  uint32_t server_threads = 1;
  int prefetch = 1;   // stages that a worker fetches ahead
  int jit_depth = 1;  // stages that servers quantize ahead of their first fetch
  bool stash_on_device = false;
  std::string weights = "fp32";  // the codecs of most bytes
  std::string gradients = "fp32";
  // The state streams through the disks at every update (storage.kind=nvme).
  bool state_on_disk = false;
};

// One stage on one kind of worker, each activity alone and undisturbed.
struct StageTimes {
  std::string name;
  Seconds encode;         // all servers together, once for all workers
  Seconds fetch_forward;  // over the network, all workers at once
  Seconds fetch_backward;
  Seconds decode_forward;
  Seconds decode_backward;
  Seconds to_device;  // decoded weights, per fetch
  Seconds forward;    // all parts of one worker
  Seconds backward;
  Seconds stash;        // from the device and back, all parts of one worker
  Seconds from_device;  // gradients, all parts of one worker
  Seconds encode_push;
  Seconds push;
  Seconds update;  // reduction of all parts, and update, on all servers
  Seconds disk;    // state from and to the disks of all servers
};

// Something that can be busy, and for how long it is in a step.
struct Resource {
  std::string name;  // "worker compute"
  Seconds busy;
  std::string remedy;  // what makes it less busy, with the key or the description's field
};

struct StepEstimate {
  Seconds step;
  std::vector<StageTimes> stages;   // of the kind of worker that a step waits for
  std::string worker;               // that kind's name
  std::vector<Resource> resources;  // busiest first: the bottleneck, and the next one
  Seconds waiting;                  // of the device, for anything
};

// REQUIRES at least one stage, worker and server, and storage where the state lies on disks.
StepEstimate EstimateStep(const Workload& work, const Hardware& hardware, const RunShape& shape);

}  // namespace eps::planner

#endif  // EPS_PLANNER_STEP_MODEL_H_
