#ifndef EPS_PLANNER_SIMULATOR_SCENARIO_H_
#define EPS_PLANNER_SIMULATOR_SCENARIO_H_

// A training run on many machines, as the simulator is told it: what a step asks for, who does it,
// and what goes wrong.

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

// What a death costs besides the restart (docs/protocol.md, docs/durability.md). In mode sealed a
// worker's death never rolls back: no state has changed, and its parts are computed anew.
enum class Replay {
  kRollback,  // all go back to the last cut
  kFrontier,  // a dead worker's parts repeat their forward pass and go on; a server: rollback
  kLog,       // a dead server replays the contributions since its cut; a worker: rollback
};
const char* ReplayName(Replay replay);  // "rollback", "frontier", "log"

// Workers join (above 0) or leave (below 0) when the step under way at `at` is complete; the parts
// are then dealt anew.
struct MembershipChange {
  Seconds at;
  int32_t workers = 0;
};

struct Death {
  Seconds at;
  bool of_worker = true;  // else of a server
};

struct Scenario {
  Workload work;      // its parts are dealt anew when workers come or go
  Hardware hardware;  // all workers are of its first kind
  RunShape shape;     // with the workers at the start

  Replay replay = Replay::kRollback;
  uint64_t cut_steps = 0;  // a cut every so many steps; 0: only the state at the start is durable
  Seconds cut;             // for which a cut holds training up

  Seconds worker_restart;  // from a death until training goes on, detection included
  Seconds server_restart;
  PerSecond worker_failures;  // of one worker, exponential
  PerSecond server_failures;  // of one server

  double slow_fraction = 0;  // of the workers, to the nearest number
  double slow_factor = 1;    // by which their passes take longer
  double jitter =
      0;  // sigma of the lognormal factor of each worker's passes in each step; median 1

  std::vector<Death> deaths;                 // beside those that are drawn, in order of time
  std::vector<MembershipChange> membership;  // in order of time

  // The run ends after so many steps, or after so long: what comes first. 0: no limit; not both 0.
  uint64_t steps = 0;
  Seconds duration;
  uint64_t seed = 0;
  size_t max_events = 100;  // kept for the timeline; all are counted

  uint32_t most_workers() const;  // at any time
  // So many, each with a part as large as those before.
  void SetWorkers(uint32_t workers);
  // As many machines, of the first kind, with a process each; on the machine that its workers
  // compute on, too, processes.
  void SetServers(uint32_t servers);

  // InvalidArgument names the field, what was expected and what was found.
  absl::Status Validate() const;
};

// Interruptions of published runs. A worker of such a run is one accelerator with its share of the
// host and the network: all that interrupted the job is divided by their number.
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
