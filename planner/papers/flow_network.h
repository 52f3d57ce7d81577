#ifndef EPS_PLANNER_PAPERS_FLOW_NETWORK_H_
#define EPS_PLANNER_PAPERS_FLOW_NETWORK_H_

// A small machine in virtual time: flows of bytes that share links, and work that waits for its
// predecessors and for its turn on a resource. Deterministic: no clock, no random numbers; equal
// things take their turns by id. For tens of links and thousands of tasks: each event costs time in
// the number of active flows and links.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "planner/units.h"

namespace eps::planner {

using LinkId = Id<struct LinkTag, uint32_t>;
using ResourceId = Id<struct ResourceTag, uint32_t>;
using TaskId = Id<struct TaskTag, uint32_t>;

// A flow at rate r takes cost * r of the link. A medium that reads at R and writes at W, and does
// one at a time, is a link of capacity R that reads cross at cost 1 and writes at cost R / W.
struct Crossing {
  LinkId link;
  double cost = 1;  // above 0
};

class FlowNetwork {
 public:
  // When each task finished, by its id; everything starts at 0.
  struct Schedule {
    std::vector<Seconds> finish;
    Seconds end() const;  // of the last one; 0 without tasks
    Seconds FinishOf(TaskId task) const { return finish[task.value()]; }
  };

  // `capacity` above 0; kNoLimit is legal.
  LinkId AddLink(BytesPerSecond capacity);
  // Does one piece of work at a time: of those that are ready, the one with the lowest id.
  ResourceId AddResource();

  // Tasks start when all of `after` have finished; those have to be there already, so that there
  // are no cycles. Flows of no bytes or over links without a limit take no time.
  TaskId AddFlow(Bytes bytes, std::vector<Crossing> path, std::vector<TaskId> after);
  TaskId AddWork(Seconds duration, ResourceId on, std::vector<TaskId> after);

  // Active flows share the links max-min fairly: no flow can be made faster without making one
  // slower that is not faster than it (Bertsekas and Gallager, Data Networks, section 6.5.2).
  Schedule Run() const;

 private:
  class Simulation;
  struct Task {
    Bytes bytes;
    std::vector<Crossing> path;
    Seconds duration;
    std::optional<ResourceId> on;  // of work; a flow has none
    std::vector<TaskId> after;
  };

  std::vector<BytesPerSecond> links_;
  uint32_t resources_ = 0;
  std::vector<Task> tasks_;
};

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_FLOW_NETWORK_H_
