#ifndef EPS_PLANNER_SIMULATOR_STEP_MODEL_H_
#define EPS_PLANNER_SIMULATOR_STEP_MODEL_H_

// How long one undisturbed step takes: the relay of docs/protocol.md as flows over links and
// processors, in O(stages * classes of workers).
//
// A worker visits every stage on its way up, the last one once, and every other one on its way
// down: 2 n - 1 visits (L2L section 3). A visit's weights are fetched when the visit before by
// prefetch + 1 has dropped its own, and not before the servers have encoded them; what a visit
// computes waits for its weights, for the visit before and for the memory of a gradient. Gradients
// are pushed behind the visit, reduced when they are there, and the stage is updated: at once
// (eager), or at the start of the next step in forward order (sealed).
//
// Shares: each of the workers at work has an equal part of the servers' links, also while others
// leave theirs unused, so a step is never shorter than with fair queues. On the processors encoding
// goes before reduction and update, because somebody waits for it. A sealed step lasts from
// decision to decision: the updates of the step before are in it, its own are not. An eager one
// lasts until the first stage, the last to be updated, is at the new version: nothing of the next
// step can begin before.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/simulator/scenario.h"
#include "planner/units.h"

namespace eps::planner::simulator {

enum class Resource {
  kWorkerCompute,
  kWorkerReceive,
  kWorkerSend,
  kServerSend,
  kServerReceive,
  kServerProcessors,
};
inline constexpr size_t kResourceCount = 6;
const char* ResourceName(Resource resource);  // "worker compute", "worker receive", ...
// One of the workers' machines; else one of the servers'.
bool IsOfWorkers(size_t resource);

// Workers that are alike in a step.
struct WorkerClass {
  uint32_t workers = 0;
  uint32_t parts = 0;   // that each hosts, above 0
  double slowdown = 1;  // by which its passes take longer
};

struct StepTimes {
  Seconds duration;
  Seconds forward;  // until the last worker has ended its forward pass
  // How long one machine of the kind is busy: its mean over all of them, and the busiest one's.
  std::array<Seconds, kResourceCount> busy{};
  std::array<Seconds, kResourceCount> busiest{};

  // That with the busiest machine: no step can be shorter than what this takes.
  Resource bottleneck() const;
};

class StepModel {
 public:
  // Borrows the scenario. REQUIRES scenario.Validate().ok().
  explicit StepModel(const Scenario& scenario);

  // The classes of `workers` workers. Parts are dealt evenly, to slow workers last; workers without
  // a part are in no class.
  std::vector<WorkerClass> Classes(uint32_t workers) const;
  // The same with the jitter of a step: of each class the slowest worker is drawn from the exact
  // distribution of the largest of its factors, all others run at their median, since only the
  // slowest is waited for.
  std::vector<WorkerClass> Disturbed(const std::vector<WorkerClass>& classes, uint64_t step) const;

  // `members`: the machines over which `busy` is the mean, with those that have no part.
  StepTimes Run(const std::vector<WorkerClass>& classes, uint32_t members) const;

 private:
  struct Visit {
    Bytes fetch;
    Bytes push;          // of one part
    Seconds compute;     // of one part
    bool turns = false;  // the last stage's
    Seconds forward;     // then, the pass that it begins with, of one part
    // Of all servers together.
    Seconds encode;
    Seconds reduce;  // of one part
    Seconds update;
    Seconds updated_before;  // sealed: updates of this stage and those before it
  };
  class Workers;
  void AddBusy(const std::vector<WorkerClass>& classes, uint32_t members, StepTimes* times) const;

  const Scenario& scenario_;
  std::vector<Visit> visits_;
};

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_STEP_MODEL_H_
