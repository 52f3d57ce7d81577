#ifndef EPS_TESTS_MODEL_PROTOCOL_MODEL_H_
#define EPS_TESTS_MODEL_PROTOCOL_MODEL_H_

// The protocol of docs/protocol.md as a state machine, and an exhaustive search over it: every
// order of messages, flushes, crashes and restarts within the bounds of a configuration.
//
// Two shards own `stages_per_shard` stages each; two parts contribute to every stage in every step;
// every cut_interval-th step is a cut, for which a shard has two slots. Shard 0's process is the
// lead, too. Messages wait in a bag, arrive in any order, late, or never. Each state of a chunk is
// known by its lineage: the recovery in which each of its steps was computed. A contribution
// carries the lineage of the weights that it was computed from. None of that is visible to the
// protocol; it is what violations are found with.
//
// A shard may have a contribution log: a list of facts, of which a crash leaves any beginning that
// holds what was synced. What it tells follows from synced facts only, and it comes back by its
// youngest cut and the log, in its term. A contribution stays in the bag until the fact is durable:
// so workers repeat what was not acknowledged.
//
// Each rule can be taken away; then the search has to find what the rule is there for. The rules
// and what was found without them are tabled in docs/protocol.md.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eps {

struct ModelRules {
  // Identity.
  bool push_names_term = true;  // a push of another term than the open one is STALE
  bool first_contribution_wins = true;
  bool fetch_names_version = true;    // "latest" is never served
  bool have_set_is_answered = true;   // a replacement does not repeat what is counted
  bool fresh_process_refuses = true;  // until a recovery has opened a term, it serves nothing
  // Modes.
  bool one_decision = true;          // all shards follow the lead's decision to skip
  bool skip_advances_step = true;    // a skipped step takes its data with it
  bool slot_of_cut_not_step = true;  // slots alternate by cut, not by the parity of the step
  // Retention.
  bool retain_until_complete = true;  // v(t-1) stays until every part has begun t+1
  bool begin_after_acks = true;       // a part begins t+1 when all its pushes of t are counted
  // Cuts.
  bool update_waits_for_capture = true;   // all cuts, in order, never skipped
  bool recycle_below_watermark = true;    // a slot is used again only below the watermark
  bool durable_names_term = true;         // the lead counts reports of its own term only
  bool cut_names_term = true;             // two cuts are the same only if (step, term) agree
  bool durable_only_in_term = true;       // slots count with step <= base or of the current term
  bool restore_waits_for_quiesce = true;  // nothing issued earlier can still reach the disk
  // Recovery.
  bool all_promise = true;          // before the base is chosen
  bool term_is_durable = true;      // before it is open
  bool base_is_common = true;       // not: each shard its own newest cut
  bool restore_kills_newer = true;  // cuts above the base are durably dead
  bool restore_reloads_all = true;  // survivors, too, drop what they hold in memory
  // One version.
  bool begin_names_first_step = true;  // so that a shard knows what is lost with a worker
  // Contribution logs.
  bool tell_after_sync = true;         // nobody hears what follows from facts that are not durable
  bool replay_before_serving = true;   // a process is heard, and hears, behind its whole log
  bool replay_names_origin = true;     // what is replayed is known when it is repeated
  bool replay_skips_old = true;        // facts that the cut holds, too, count once
  bool log_moves_with_cut = true;      // in one write: not when the cut is begun
  bool log_synced_before_read = true;  // what can be read is not durable yet
  bool log_of_promised_term = true;    // a log of another term is none
  bool lead_promises_first = true;     // or it comes back in a term that others have left
  bool register_names_promise = true;  // and it hears of that when they register
  bool session_is_logged = true;       // behind each cut: the lead knows who the shards are
  bool session_follows_replay = true;  // if that has passed a cut
  bool session_has_decision = true;    // and what they may have missed
  bool cut_waits_for_log = true;       // it is recorded behind what was logged before
  bool one_process_per_log = true;     // a log in a copied file is none
};

struct ModelConfig {
  int stages_per_shard = 1;  // 1 or 2
  int steps = 2;             // at most 4, a multiple of cut_interval
  int cut_interval = 1;
  int logs = 0;              // a bit for each shard that has a contribution log
  bool one_version = false;  // as the build: none before the open step's is kept
  int shard_crashes = 1;     // of either shard, at any point
  int worker_crashes = 0;    // of either part; what it has sent may still arrive, or not
  bool sealed = false;       // every step waits for the lead's decision
  int poisoned_step = 0;  // sealed: part 0 has a gradient that is not finite in this step; 0: none
  bool stop_at_violation = false;  // the first one, or the first stuck state, ends the search
  ModelRules rules;
};

struct ModelResult {
  uint64_t states = 0;
  uint64_t transitions = 0;
  uint64_t finals = 0;  // states in which all steps are durable on all shards
  uint64_t stuck = 0;   // not final, and nothing but a crash can happen
  int depth = 0;
  double seconds = 0;
  std::map<std::string, uint64_t> violations;  // transitions into each kind; not searched further
  // How the first violation of each kind, and the first stuck state, came about.
  std::map<std::string, std::vector<std::string>> traces;
};

// Breadth first, on the calling thread. States are told apart by 128 bits of a hash. The counts are
// the same everywhere.
ModelResult CheckProtocol(const ModelConfig& config);

}  // namespace eps

#endif  // EPS_TESTS_MODEL_PROTOCOL_MODEL_H_
