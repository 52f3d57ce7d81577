#ifndef EPS_SERVER_CORE_TESTING_TRACE_MONITOR_H_
#define EPS_SERVER_CORE_TESTING_TRACE_MONITOR_H_

// Holds what the shards of one durable job do (effect::Trace) against the rules that tests/model
// searches with: promises, cuts, restores, steps, updates and contributions. For tests.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps_server/core/trace/trace_action.h"
#include "storage/cuts/cut.h"

namespace eps {

// Thread-compatible. Actions have to come in an order in which causes are before effects.
class TraceMonitor {
 public:
  // `logs`: what a shard has of a term outlives its process.
  TraceMonitor(uint32_t shards, bool logs) : logs_(logs), shards_(shards) {}

  void OnAction(ShardId shard, const TraceAction& action);
  // The shard's process is a new one: what the one before it held in memory is gone.
  void OnProcess(ShardId shard);

  // What broke a rule: the rule, and the action with its shard.
  const std::vector<std::string>& violations() const { return violations_; }
  // Actions that were seen.
  uint64_t actions() const { return actions_; }

 private:
  struct Shard {
    // Durable.
    Term promised;
    std::set<CutId> cuts;
    std::optional<CutId> had_base;  // in the term that was promised last, in whatever process
    // Of the process.
    std::optional<CutId> base;  // that it took its state from, in this term
    Term term;
    uint64_t open_step = 0;                // 0: none is
    Term left_term;                        // in which the process before ended,
    uint64_t left_at = 0;                  // and the step that it had open
    std::vector<CutId> begun;              // cuts of this term, as they were begun
    size_t durable = 0;                    // of these
    std::set<uint64_t> updating, updated;  // chunks, in the open step
    bool recovered = false;
    bool replaying = false;
    bool settles = false;  // it was replayed, and updates of its open step may be under way
    bool failed = false;
  };

  void Expect(bool holds, const char* rule);
  bool OnAll(const CutId& cut) const;
  // What a process found on its disk: its cuts, of which one may be durable before it is told, and
  // for the first time what was promised; later that may be older than the newest promise.
  void OnRecovered(Shard* shard);
  void OnPromised(Shard* shard);
  void OnRestored(Shard* shard);
  void OnResumed(Shard* shard);
  void OnReplayed(Shard* shard);
  void ExpectNear(const Shard& shard);
  void OnStepOpened(Shard* shard);
  void OnCut(Shard* shard);
  void OnDurable(Shard* shard);
  void OnUpdate(Shard* shard);

  const bool logs_;
  std::vector<Shard> shards_;
  std::map<Term, CutId> bases_;     // by the term that began with it
  std::optional<CutId> committed_;  // the youngest cut that was ever durable everywhere
  std::vector<std::string> violations_;
  uint64_t actions_ = 0;
  ShardId at_;  // of the action
  TraceAction action_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_TRACE_MONITOR_H_
