#ifndef EPS_PLANNER_SIMULATOR_RUN_TALLY_H_
#define EPS_PLANNER_SIMULATOR_RUN_TALLY_H_

// The sums and the timeline of one simulated run. Private to simulator.cc.

#include <array>
#include <cstdint>
#include <optional>

#include "planner/simulator/scenario.h"
#include "planner/simulator/simulator.h"
#include "planner/step_model.h"
#include "planner/units.h"

namespace eps::planner::simulator {

// The progress of training. Progress within a step is the time spent in it, its cut included.
struct Place {
  uint64_t step = 0;
  Seconds within;
  bool before(const Place& other) const {
    return step < other.step || (step == other.step && within < other.within);
  }
};

// Adds up what a run reports and measures its stops and its recoveries. The tally decides nothing:
// the run calls it for everything that happens, and the result depends on these calls and the
// scenario alone. All points in time are simulated seconds since the start of the run. Not
// thread-safe.
class RunTally {
 public:
  // Borrows `scenario`, which must outlive the tally.
  explicit RunTally(const Scenario& scenario) : scenario_(scenario) {}

  // Counts the event and keeps the first `max_events` for the timeline.
  void Note(const Event& event);

  // Adds training of `workers` workers for `time`, which keeps the machines as busy as `share` of a
  // step with `times` does.
  void AddTraining(Seconds time, uint32_t workers, double share, const StepTimes& times);
  // Adds a completed step or cut. Its training has already been added.
  void AddStep(Seconds duration) { result_.useful += duration; }
  void AddCut(Seconds duration) { result_.cuts += duration; }
  // Adds work within the step in flight that has to be repeated.
  void AddRepeat(Seconds time) { result_.lost += time; }
  // Moves `steps` completed steps, which took `useful`, to the lost ones, and adds `within`, the
  // lost time of the step in flight.
  void LoseSteps(uint64_t steps, Seconds useful, Seconds within);

  // A stop lasts from a death until training resumes or the run ends; another death in between
  // belongs to the same stop. EndStop does nothing outside a stop.
  bool stopped() const { return stopped_at_.has_value(); }
  void Stop(Seconds at);
  void EndStop(Seconds at, uint32_t workers);

  // A recovery lasts from a death until training reaches the place of that death again; another
  // death in between belongs to the same recovery. ReachPlace ends it if `place`, reached at `at`,
  // is at or after that place.
  void BeginRecovery(Seconds died_at, const Place& place);
  void ReachPlace(Seconds at, const Place& place);

  uint64_t failures() const { return result_.worker_failures + result_.server_failures; }

  // Returns the result of a run that ends at time `wall` in `place`, all but the undisturbed step.
  // REQUIRES no stop in progress. Call it once, last.
  SimulationResult Finish(Seconds wall, const Place& place);

 private:
  const Scenario& scenario_;
  std::array<Seconds, kResourceCount> busy_{};  // of all machines together
  Seconds worker_time_;                         // of all workers together
  std::optional<Seconds> stopped_at_;           // present during a stop
  std::optional<Place> lost_place_;             // present during a recovery
  Seconds recovery_began_;
  Seconds recovery_sum_;
  SimulationResult result_;
};

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_RUN_TALLY_H_
