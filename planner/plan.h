#ifndef EPS_PLANNER_PLAN_H_
#define EPS_PLANNER_PLAN_H_

// What a run will take and how fast it will be, before anything is allocated. Pure functions.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "planner/hardware.h"
#include "planner/memory_plan.h"
#include "planner/step_model.h"
#include "planner/units.h"
#include "planner/workload.h"
#include "base/job/job_spec.h"

namespace eps::planner {

// The largest model that the servers hold, by where its state lies and how wide that is. Only the
// first rows are what this program does; the others show what narrower moments would bring.
struct Capacity {
  std::string what;        // "memory, FP32 moments"
  double state_bytes = 0;  // per parameter
  double parameters = 0;
  bool built = true;  // false: no mode of this program
};

struct Plan {
  std::string model;  // "gpt2"
  std::string hardware;
  RunShape shape;
  Workload work;
  std::vector<TierUse> tiers;
  StepEstimate estimate;
  std::vector<Capacity> capacities;
  // Bytes of a step over the network, all workers together, residuals included.
  Bytes fetched;
  Bytes pushed;
  double tokens_per_second = 0;
  double mfu = 0;  // model operations / peak of the devices that compute
  // If computational storage updated the state, which no mode of this program does; absent: there
  // is none.
  std::optional<Seconds> step_in_storage;
  // By updates, cuts and the contribution log; absent: nothing is durable.
  std::optional<Bytes> written_per_day;  // on the disk that is written most
  // Until the first disk has been written as often as it endures; absent if none is known.
  std::optional<double> endurance_days;
  std::optional<double> dollars_per_million_tokens;  // absent: no prices

  Seconds step() const { return estimate.times.duration; }
  Resource bottleneck() const { return estimate.times.bottleneck(); }
};

// How a configuration uses machines: processes of `servers.addresses` (a number, or addresses) and
// `worker.count`; where they are left at their defaults, one for each machine and device.
RunShape ShapeOf(const Config& config, const Hardware& hardware);

// `spec` is the job spec of `config`, with one part per worker of ShapeOf unless it says otherwise.
// Errors as PlanMemory's; a plan that does not fit is no error here (CheckFits).
absl::StatusOr<Plan> MakePlan(const Config& config, const JobSpec& spec, const Hardware& hardware);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PLAN_H_
