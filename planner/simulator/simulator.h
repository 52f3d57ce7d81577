#ifndef EPS_PLANNER_SIMULATOR_SIMULATOR_H_
#define EPS_PLANNER_SIMULATOR_SIMULATOR_H_

// Simulates a training run with failures, cuts and changing workers, event by event. StepModel
// (planner/step_model.h) gives the steps; the only other events are deaths, restarts, cuts and
// changes of the membership.
//
//   * A death stops training until its process has restarted; deaths in the meantime count as well.
//   * Rollback: all steps since the last cut, and an unfinished cut, are lost. The part of a step
//     in which a worker dies makes no difference here; the program loses less in a forward pass.
//   * A worker's death without rollback: its parts restart the step (sealed), or repeat the forward
//     pass and continue where they were (frontier), while all other workers wait.
//   * Log: a dead server repeats the work of its processors since the last cut, unless a rollback
//     intervenes. Workers continue with the weights that they hold, on average half a visit and
//     those fetched ahead; the contributions that they send meanwhile also have to be replayed.
//
// The same scenario gives bit-identical results on every machine. A faster machine or link, more
// servers with the same total of failures, and lower failure rates never make a run with fixed
// membership longer, because the failures of a lower rate are a subset of those of a higher rate,
// at the same times. There is one exception: in mode sealed, a worker that dies while a server
// replays its log makes part of the replay useless, and the more so the further the step was.
// (Goodput is a ratio: faster steps can lower it, because restarts and cuts take as long as
// before.)

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/simulator/scenario.h"
#include "planner/step_model.h"
#include "planner/units.h"

namespace eps::planner::simulator {

// The kinds of events in a timeline.
enum class EventKind {
  kWorkerFailed,
  kServerFailed,
  kRolledBack,      // to the state after `step`
  kResumed,         // training resumes
  kWorkersChanged,  // to `workers` workers
};
const char* EventKindName(EventKind kind);  // "worker failed", ...

// One entry of the timeline.
struct Event {
  Seconds at;
  EventKind kind = EventKind::kResumed;
  uint64_t step = 0;  // completed steps at that time
  uint32_t workers = 0;
};

// The outcome of one simulated run.
struct SimulationResult {
  uint64_t steps = 0;  // completed at the end
  StepTimes step;      // an undisturbed step of the initial workers
  // wall = useful + cuts + lost + down + unfinished.
  Seconds wall;
  Seconds useful;      // time of the steps that count
  Seconds cuts;        // time that training waited for cuts
  Seconds lost;        // work that had to be repeated
  Seconds down;        // from deaths until training resumed
  Seconds unfinished;  // time in the step that `duration` cut off

  uint64_t lost_steps = 0;  // completed steps that had to be repeated
  uint64_t worker_failures = 0;
  uint64_t server_failures = 0;
  uint64_t rollbacks = 0;
  // A recovery lasts from a death until training reaches the place of that death again; deaths in
  // between belong to the same recovery.
  uint64_t recoveries = 0;
  Seconds mean_recovery;
  Seconds worst_recovery;

  // Busy time over wall time, for all machines of a kind, repeated work included.
  std::array<double, kResourceCount> utilization{};
  double tokens_per_second = 0;  // 0 if the tokens per step are unknown
  uint64_t event_count = 0;
  std::vector<Event> events;  // the first `max_events` events

  double goodput() const { return wall == Seconds(0) ? 0 : useful / wall; }
  double steps_per_hour() const {
    return wall == Seconds(0) ? 0 : 3600 * static_cast<double>(steps) / wall.value();
  }
  Resource bottleneck() const { return step.bottleneck(); }
};

// Returns InvalidArgument if Scenario::Validate fails or a step takes no time, and
// ResourceExhausted if so many failures occur that the run does not end.
absl::StatusOr<SimulationResult> Simulate(const Scenario& scenario);

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_SIMULATOR_H_
