#ifndef EPS_PLANNER_PLAN_H_
#define EPS_PLANNER_PLAN_H_

// Predicts the memory, the speed and the cost of a run before anything is allocated. Pure
// functions.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"
#include "planner/hardware.h"
#include "planner/memory_plan.h"
#include "planner/step_model.h"
#include "planner/units.h"
#include "planner/walls.h"
#include "planner/workload.h"

namespace eps::planner {

// The largest model that the servers can hold, for one place of its state and one width of the
// moments. This program implements only the rows with `built` set; the others show what narrower
// moments would allow.
struct Capacity {
  std::string what;        // "state in memory, FP32 moments"
  double state_bytes = 0;  // per parameter
  double parameters = 0;
  bool built = true;  // false if no mode of this program does it
};

// Everything that `eps plan` reports about one run.
struct Plan {
  std::string model;  // "gpt2"
  std::string hardware;
  RunShape shape;
  Workload work;
  std::vector<TierUse> tiers;
  StepEstimate estimate;
  std::optional<StepWalls> walls;  // absent if workers and servers share their cores
  std::vector<Capacity> capacities;
  // Bytes that one step moves over the network for all workers together, residuals included.
  Bytes fetched;
  Bytes pushed;
  double tokens_per_second = 0;
  double mfu = 0;  // model operations / peak of the computing devices
  // The duration of a step if computational storage updated the state (storage.kind=csd). Absent if
  // it does, and if the hardware has no such storage.
  std::optional<Seconds> step_in_storage;
  // Bytes written per day by updates, cuts and the contribution log on the disk that is written
  // most. Absent if nothing is durable.
  std::optional<Bytes> written_per_day;
  // Days until the first disk reaches its write endurance; absent if no endurance is known.
  std::optional<double> endurance_days;
  std::optional<double> dollars_per_million_tokens;  // absent if the hardware has no prices

  Seconds step() const { return estimate.times.duration; }
  Resource bottleneck() const { return estimate.times.bottleneck(); }
};

// Returns how a configuration uses the machines. The process counts come from `servers.addresses`
// (a number or a list of addresses) and `worker.count`; at their defaults, there is one process per
// server machine and one per device.
RunShape ShapeOf(const Config& config, const Hardware& hardware);

// Plans a run. `spec` is the job spec of `config`, with one part per worker of ShapeOf unless the
// configuration says otherwise. Fails as PlanMemory does; a plan that does not fit is not an error
// here (see CheckFits).
absl::StatusOr<Plan> MakePlan(const Config& config, const JobSpec& spec, const Hardware& hardware);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PLAN_H_
