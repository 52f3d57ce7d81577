#ifndef EPS_CLI_LAUNCH_RESTART_RULES_H_
#define EPS_CLI_LAUNCH_RESTART_RULES_H_

// Decides which children of a run are started again after they end.

#include <cstddef>
#include <cstdint>
#include <map>

namespace eps {

// Which ends of children a run survives. Each value includes the ones before it.
enum class Survives {
  // A worker that somebody stops: it finishes its step and gives its parts back. A worker whose
  // parts another process takes over.
  kStoppedWorkers,
  // A worker that is killed: in mode sealed no weight changes before a step is complete.
  kKilledWorkers,
  // Every process that is killed or stopped, and those that give up because of it: the state is
  // durable.
  kKilledProcesses,
};

// Thread-compatible. A status is one of wait(2).
class RestartRules {
 public:
  enum class Action {
    kNone,     // the end of the child ends the run, or the child has done its work
    kReplace,  // start it again; it was stopped and lost nothing
    kRestart,  // start it again; this counts toward the most restarts
  };

  // At most `max_restarts` calls count as restarts, for all children together.
  RestartRules(Survives survives, uint64_t max_restarts)
      : survives_(survives), max_restarts_(max_restarts) {}

  // Call this for every completed step. Between two steps each worker is replaced once; more
  // replacements count as restarts, so that workers that are stopped again and again end the run.
  void OnStep() { ++steps_; }

  // Decide about a server, or about the worker of a rank, that ended with `status`. Do as they say:
  // they count it.
  Action OnServerEnd(int status);
  Action OnWorkerEnd(size_t rank, int status);
  // Returns kRestart for a child to start again although it ended without an error; kNone if
  // there were too many restarts already.
  Action Count();

  // The restarts that were counted.
  uint64_t restarts() const { return restarts_; }

 private:
  const Survives survives_;
  const uint64_t max_restarts_;
  uint64_t restarts_ = 0;
  uint64_t steps_ = 0;
  std::map<size_t, uint64_t> replaced_at_;  // by rank: steps_ at the last replacement
};

// Returns whether a child ended because it was asked to: by SIGTERM or SIGINT, or with the code
// that our programs give after these signals.
bool WasStopped(int status);

// Returns whether a signal that did not ask ended a child, such as SIGKILL.
bool WasKilled(int status);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_RESTART_RULES_H_
