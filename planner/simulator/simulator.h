#ifndef EPS_PLANNER_SIMULATOR_SIMULATOR_H_
#define EPS_PLANNER_SIMULATOR_SIMULATOR_H_

// A training run with failures, cuts and workers that come and go, event by event. Steps come from
// StepModel (planner/step_model.h); in between only deaths, restarts, cuts and changes of the
// membership happen.
//
//   * A death stops training until its process is back; deaths meanwhile count, too.
//   * Rollback: steps since the last cut, and a cut that was not finished, are lost. It does not
//     matter in what part of a step a worker dies; the program loses less in a forward pass.
//   * A worker's death that loses no step: its parts begin the step again (sealed), or repeat the
//     forward pass and go on where they were (frontier), while all others wait.
//   * Log: a dead server repeats the work on its processors since the last cut, unless a rollback
//     comes in between. Workers go on with the weights that they have: half a visit and those that
//     are fetched ahead; what they send meanwhile is work for it, too.
//
// The same scenario gives the same result to the last bit on every machine. A faster machine or
// link, more servers with as many failures in all, and lower rates of failures never make a run of
// fixed membership longer: a lower rate has some of the failures of the higher one, at the same
// times. One exception: a worker that dies while a server replays its log in mode sealed makes part
// of the replay useless, of which there is more the further the step had come. (Goodput is a ratio:
// faster steps can make it smaller, because restarts and cuts take as long as before.)

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/simulator/scenario.h"
#include "planner/step_model.h"
#include "planner/units.h"

namespace eps::planner::simulator {

enum class EventKind {
  kWorkerFailed,
  kServerFailed,
  kRolledBack,      // to the state behind `step`
  kResumed,         // training goes on
  kWorkersChanged,  // to `workers`
};
const char* EventKindName(EventKind kind);  // "worker failed", ...

struct Event {
  Seconds at;
  EventKind kind = EventKind::kResumed;
  uint64_t step = 0;  // complete ones at that time
  uint32_t workers = 0;
};

struct SimulationResult {
  uint64_t steps = 0;  // complete at the end
  StepTimes step;      // an undisturbed one of the workers at the start
  // wall = useful + cuts + lost + down + unfinished.
  Seconds wall;
  Seconds useful;      // of the steps that count, as long as each of them took
  Seconds cuts;        // that training waited for
  Seconds lost;        // work that had to be repeated
  Seconds down;        // from deaths until training went on
  Seconds unfinished;  // the step at the end of `duration`

  uint64_t lost_steps = 0;  // complete ones that had to be repeated
  uint64_t worker_failures = 0;
  uint64_t server_failures = 0;
  uint64_t rollbacks = 0;
  // A recovery lasts from a death until training stands where it stood then; deaths in between
  // belong to it.
  uint64_t recoveries = 0;
  Seconds mean_recovery;
  Seconds worst_recovery;

  // Busy time over wall time, of all machines of the kind, repeated work included.
  std::array<double, kResourceCount> utilization{};
  double tokens_per_second = 0;  // 0: tokens per step are not known
  uint64_t event_count = 0;
  std::vector<Event> events;  // the first ones

  double goodput() const { return wall == Seconds(0) ? 0 : useful / wall; }
  double steps_per_hour() const {
    return wall == Seconds(0) ? 0 : 3600 * static_cast<double>(steps) / wall.value();
  }
  Resource bottleneck() const { return step.bottleneck(); }
};

// InvalidArgument: Scenario::Validate, or a step that takes no time. ResourceExhausted: so many
// failures that the run does not end.
absl::StatusOr<SimulationResult> Simulate(const Scenario& scenario);

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_SIMULATOR_H_
