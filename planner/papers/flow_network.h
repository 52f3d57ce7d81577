#ifndef EPS_PLANNER_PAPERS_FLOW_NETWORK_H_
#define EPS_PLANNER_PAPERS_FLOW_NETWORK_H_

// A small machine in virtual time: flows of bytes share links, and work waits for its predecessors
// and for a resource. Deterministic: it uses neither a clock nor random numbers, and ties are
// broken by id. Suited to tens of links and thousands of tasks, since the cost of each event grows
// with the number of active flows and links.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "planner/units.h"

namespace eps::planner {

using LinkId = Id<struct LinkTag, uint32_t>;
using ResourceId = Id<struct ResourceTag, uint32_t>;
using TaskId = Id<struct TaskTag, uint32_t>;

// One link on the path of a flow. A flow at rate r uses cost * r of the link. A medium that reads
// at R and writes at W, one at a time, is a link of capacity R that reads cross at cost 1 and
// writes at cost R / W.
struct Crossing {
  LinkId link;
  double cost = 1;  // above 0
};

// Builds the tasks of one run and schedules them. Not thread-safe.
class FlowNetwork {
 public:
  // The finish time of each task, by its id; the run starts at 0.
  struct Schedule {
    std::vector<Seconds> finish;
    Seconds end() const;  // finish time of the last task; 0 without tasks
    Seconds FinishOf(TaskId task) const { return finish[task.value()]; }
  };

  // Adds a link. `capacity` must be positive and may be kNoLimit.
  LinkId AddLink(BytesPerSecond capacity);
  // Adds a resource, which runs one piece of work at a time: of those ready, the one with the
  // lowest id.
  ResourceId AddResource();

  // Adds a task, which starts when all tasks in `after` have finished. Those must have been added
  // before, so there are no cycles. Flows of zero bytes, or over unlimited links only, take no
  // time.
  TaskId AddFlow(Bytes bytes, std::vector<Crossing> path, std::vector<TaskId> after);
  TaskId AddWork(Seconds duration, ResourceId on, std::vector<TaskId> after);

  // Runs all tasks. Active flows share the links max-min fairly: no flow can become faster without
  // slowing a flow that is not faster (Bertsekas and Gallager, Data Networks, section 6.5.2).
  Schedule Run() const;

 private:
  class Simulation;
  // Work on a resource, or a flow over a path.
  struct Task {
    Bytes bytes;
    std::vector<Crossing> path;
    Seconds duration;
    std::optional<ResourceId> on;  // set for work, empty for a flow
    std::vector<TaskId> after;
  };

  std::vector<BytesPerSecond> links_;
  uint32_t resources_ = 0;
  std::vector<Task> tasks_;
};

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_FLOW_NETWORK_H_
