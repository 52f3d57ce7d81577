#ifndef EPS_SERVER_CORE_TESTING_TRACE_MONITOR_H_
#define EPS_SERVER_CORE_TESTING_TRACE_MONITOR_H_

// Checks the actions of the shards of one durable job (effect::Trace) against the rules that
// tests/model searches with: promises, cuts, restores, steps, updates and contributions. For tests.

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

// Thread-compatible. Report causes before their effects.
class TraceMonitor {
 public:
  // With `logs`, the state of a shard in its term outlives its process.
  TraceMonitor(uint32_t shards, bool logs) : logs_(logs), shards_(shards) {}

  // Checks one action of a shard.
  void OnAction(ShardId shard, const TraceAction& action);
  // A new process of the shard starts, without the memory of the one before it.
  void OnProcess(ShardId shard);

  // The violations so far: each holds the rule, the shard and the action.
  const std::vector<std::string>& violations() const { return violations_; }
  // The number of actions checked.
  uint64_t actions() const { return actions_; }

 private:
  // The state of one shard, as its actions imply it.
  struct Shard {
    // Durable state.
    Term promised;
    std::set<CutId> cuts;
    std::optional<CutId> had_base;  // in the term promised last, in any process
    // State of the current process.
    std::optional<CutId> base;  // the cut of which it has the state, in this term
    Term term;
    uint64_t open_step = 0;                // 0 if no step is open
    Term left_term;                        // the term in which the process before ended,
    uint64_t left_at = 0;                  // and its open step
    std::vector<CutId> begun;              // the cuts of this term, in order of their begin
    size_t durable = 0;                    // how many of `begun` are durable
    std::set<uint64_t> updating, updated;  // chunks of the open step
    bool recovered = false;
    bool replaying = false;
    bool settles = false;  // just replayed; updates of its open step may be in flight
    bool failed = false;
  };

  // Records a violation of `rule` by the current action unless `holds`.
  void Expect(bool holds, const char* rule);
  // Returns whether the cut is durable on all shards.
  bool OnAll(const CutId& cut) const;
  // A process has read its disk. kFound lists its cuts, one of which may have become durable before
  // its process could report it. The first report since the process started also names the last
  // promise; a later one may name an older promise.
  void OnRecovered(Shard* shard);
  void OnPromised(Shard* shard);
  void OnRestored(Shard* shard);
  void OnResumed(Shard* shard);
  void OnReplayed(Shard* shard);
  // Checks that the open step of a shard is close to those of the others.
  void ExpectNear(const Shard& shard);
  void OnStepOpened(Shard* shard);
  void OnCut(Shard* shard);
  void OnDurable(Shard* shard);
  void OnUpdate(Shard* shard);

  const bool logs_;
  std::vector<Shard> shards_;
  std::map<Term, CutId> bases_;     // by term: the cut at which it began
  std::optional<CutId> committed_;  // the youngest cut that was ever on all shards
  std::vector<std::string> violations_;
  uint64_t actions_ = 0;
  ShardId at_;          // the shard of action_
  TraceAction action_;  // the current one
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_TRACE_MONITOR_H_
