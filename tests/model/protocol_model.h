#ifndef EPS_TESTS_MODEL_PROTOCOL_MODEL_H_
#define EPS_TESTS_MODEL_PROTOCOL_MODEL_H_

// The protocol of docs/protocol.md as a state machine, with an exhaustive search over every order
// of messages, flushes, crashes and restarts within the bounds of a configuration.
//
// Two shards own `stages_per_shard` stages each. Two parts contribute to every stage in every step.
// Every cut_interval-th step is a cut; a shard has two slots for cuts. The process of shard 0 is
// also the lead. Messages wait in a bag and arrive in any order, late, or never. A chunk's content
// is represented by its lineage: the recovery in which each of its steps was computed. A
// contribution carries the lineage of the weights from which it was computed. The protocol does not
// see lineages; the search uses them to detect violations.
//
// A shard may have a contribution log: a list of facts, of which a crash leaves any prefix that
// contains all synced facts. A shard sends only what follows from synced facts, and after a crash
// it resumes in its term from its youngest cut and its log. A contribution stays in the bag until
// its fact is durable, which models workers that resend what was not acknowledged.
//
// With LAMB an update needs norms of whole tensors, which span shards: each shard measures its part
// after the decision, and the lead answers with a Trust. Its content is represented by the history
// of the step that it is for, which the search compares with that of the shard that updates.
//
// Each rule can be disabled; the search must then find the failure that the rule prevents.
// docs/protocol.md lists the rules and the failures that the search finds without them.

#include "tests/model/search/model_result.h"

namespace eps {

// The rules of the protocol. A test disables one of them to show its purpose.
struct ModelRules {
  // Identity.
  bool push_names_term = true;  // a push of any term but the open one is STALE
  bool first_contribution_wins = true;
  bool fetch_names_version = true;   // a request for "latest" is never served
  bool have_set_is_answered = true;  // a replacement does not resend what is counted
  // A new process serves nothing until a recovery has opened a term.
  bool fresh_process_refuses = true;
  // Modes.
  bool one_decision = true;          // all shards follow the lead's decision to skip
  bool skip_advances_step = true;    // a skipped step consumes its data
  bool slot_of_cut_not_step = true;  // slots alternate by cut, not by the parity of the step
  // Retention.
  bool retain_until_complete = true;  // v(t-1) stays until every part has begun t+1
  bool begin_after_acks = true;       // a part begins t+1 after all its pushes of t are counted
  // Cuts.
  bool update_waits_for_capture = true;   // all cuts are captured, in order
  bool recycle_below_watermark = true;    // only slots below the watermark are reused
  bool durable_names_term = true;         // the lead counts only reports of its own term
  bool cut_names_term = true;             // cuts are equal only if both step and term agree
  bool durable_only_in_term = true;       // slots count if step <= base or of the current term
  bool restore_waits_for_quiesce = true;  // then no earlier write can still reach the disk
  // Recovery.
  bool all_promise = true;          // all shards promise before the base is chosen
  bool term_is_durable = true;      // the promised term is durable before it is opened
  bool base_is_common = true;       // the base is common, not each shard's own newest cut
  bool restore_kills_newer = true;  // cuts above the base are durably invalidated
  bool restore_reloads_all = true;  // survivors also drop their state in memory
  // Contribution logs.
  bool tell_after_sync = true;         // a shard sends only what follows from durable facts
  bool replay_before_serving = true;   // a process communicates only after replaying its whole log
  bool replay_names_origin = true;     // repetitions of replayed contributions are recognized
  bool replay_skips_old = true;        // facts that the cut also holds count once
  bool log_moves_with_cut = true;      // in one write with the cut's record, not earlier
  bool log_synced_before_read = true;  // a replay first syncs what it can read
  bool log_of_promised_term = true;    // a log of another term is ignored
  bool lead_promises_first = true;     // else it could resume in a term that others have left
  bool register_names_promise = true;  // so that the lead learns of newer terms
  bool session_is_logged = true;       // after each cut, so that a lead knows who the shards are
  bool session_follows_replay = true;  // a replay that passed a cut logs the session again
  bool session_has_decision = true;    // shards may have missed the lead's last decision
  bool cut_waits_for_log = true;       // facts logged before a cut are durable before its record
  bool one_process_per_log = true;     // a log in a copied file is ignored
  // LAMB, which the product does not have yet.
  bool norms_follow_decision = true;       // a shard measures a step after its decision
  bool norms_follow_sync = true;           // and when its log holds the contributions
  bool norms_name_term = true;             // the lead counts only norms of its own term
  bool norms_name_step = true;             // and of the step that waits for its Trust
  bool norms_count_once = true;            // per (term, step, shard)
  bool norms_sent_again = true;            // after each Register
  bool trust_names_term = true;            // a Trust of any term but the open one is ignored
  bool trust_names_step = true;            // and of any step but the open one
  bool trust_synced_before_sent = true;    // the lead's log holds a Trust before others see it
  bool trust_is_repeated = true;           // to a shard that registers
  bool session_has_trust = true;           // shards may have missed the lead's last Trust
  bool trust_logged_before_update = true;  // by each shard, for its own replay
  bool update_waits_for_trust = true;
  bool skipped_step_has_no_trust = true;
};

// The bounds of a search, and the rules that hold in it.
struct ModelConfig {
  int stages_per_shard = 1;  // 1 or 2
  int steps = 2;             // at most 4, a multiple of cut_interval
  int cut_interval = 1;
  int logs = 0;              // a bitmask of the shards that have a contribution log
  bool one_version = false;  // as in the product: only the open step's version is kept
  int shard_crashes = 1;     // of either shard, at any point
  int worker_crashes = 0;    // of either part; its messages may still arrive, or be lost
  bool sealed = false;       // every step waits for the lead's decision
  // Sealed only: the step in which part 0 has a non-finite gradient; 0 for none.
  int poisoned_step = 0;
  bool trust = false;              // sealed only: each update waits for the lead's Trust
  int link_breaks = 0;             // with trust: between the lead and shard 1, at any point
  bool stop_at_violation = false;  // stop at the first violation or stuck state
  ModelRules rules;
};

// Searches breadth first on the calling thread. Identifies states by a 96-bit hash. A state is
// final when all steps are durable on all shards, and stuck when only a crash can leave it.
ModelResult CheckProtocol(const ModelConfig& config);

}  // namespace eps

#endif  // EPS_TESTS_MODEL_PROTOCOL_MODEL_H_
