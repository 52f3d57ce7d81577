#ifndef EPS_PLANNER_SIMULATOR_SCENARIO_H_
#define EPS_PLANNER_SIMULATOR_SCENARIO_H_

// The description of a simulated training run: the work of a step, the machines that do it, and the
// failures.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "planner/hardware.h"
#include "planner/step_model.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner::simulator {

constexpr PerSecond PerHour(double events) { return PerSecond(events / 3600); }

// What the death of a process costs in addition to the restart (docs/protocol.md,
// docs/durability.md). In mode sealed a worker's death never rolls back: no state has changed, and
// its parts are recomputed.
enum class Replay {
  kRollback,  // all processes return to the last cut
  // A dead worker's parts repeat their forward pass and continue; a dead server rolls back.
  kFrontier,
  kLog,  // a dead server replays the contributions since its cut; a dead worker rolls back
};
const char* ReplayName(Replay replay);  // "rollback", "frontier", "log"

// A change of `workers` workers, which join (above 0) or leave (below 0). It takes effect when the
// step in flight at time `at` is complete; the parts are then dealt again.
struct MembershipChange {
  Seconds at;
  int32_t workers = 0;
};

// A given death of one process.
struct Death {
  Seconds at;
  bool of_worker = true;  // false for a server
};

// Everything that determines a simulation.
struct Scenario {
  Workload work;      // its parts are dealt again when workers join or leave
  Hardware hardware;  // all workers are of the first kind
  RunShape shape;     // `workers` is the number at the start

  Replay replay = Replay::kRollback;
  uint64_t cut_steps = 0;  // steps between cuts; with 0, only the initial state is durable
  Seconds cut;             // time for which a cut delays training

  Seconds worker_restart;  // from a death until training resumes, detection included
  Seconds server_restart;
  PerSecond worker_failures;  // rate for one worker; times between failures are exponential
  PerSecond server_failures;  // rate for one server

  double slow_fraction = 0;  // share of slow workers, rounded to the nearest number
  double slow_factor = 1;    // factor by which their passes take longer
  // Sigma of the lognormal factor (median 1) on each worker's passes in each step.
  double jitter = 0;

  std::vector<Death> deaths;                 // in addition to random ones, in order of time
  std::vector<MembershipChange> membership;  // in order of time

  // The run ends after `steps` steps or after `duration`, whichever comes first; 0 means no limit.
  // At least one must be set.
  uint64_t steps = 0;
  Seconds duration;
  uint64_t seed = 0;
  size_t max_events = 100;  // events kept for the timeline; all are counted

  uint32_t most_workers() const;  // the largest number at any time
  // Sets the number of workers; each hosts one part, of the same size as before.
  void SetWorkers(uint32_t workers);
  // Sets the number of servers: one machine of the first kind and one process each. If the workers
  // compute on the same machine, sets only the number of processes.
  void SetServers(uint32_t servers);

  // Returns InvalidArgument with the field, the expected and the actual value.
  absl::Status Validate() const;
};

// The interruption rate of a published run. A worker is one accelerator with its share of the host
// and the network, so all interruptions of the job are divided by the number of accelerators.
struct FailureLog {
  const char* name;
  double interruptions;
  double days;
  double accelerators;
  const char* source;
  constexpr PerSecond per_worker() const {
    return PerHour(interruptions / (days * 24) / accelerators);
  }
};
inline constexpr FailureLog kFailureLogs[] = {
    {"llama3-405b", 419, 54, 16384,
     "The Llama 3 Herd of Models (2024), reliability and operational challenges: 419 unexpected "
     "interruptions in 54 days on 16,384 H100"},
    {"opt-175b", 35, 60, 992,
     "OPT: Open Pre-trained Transformer Language Models (2022), hardware failures: at least 35 "
     "manual restarts in 2 months (here 60 days) on 992 A100"},
    {"bloom-176b", 1.5, 7, 384,
     "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model (2022): on average 1-2 GPU "
     "failures per week (here 1.5) on 384 A100"},
};

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_SCENARIO_H_
