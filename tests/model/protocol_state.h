#ifndef EPS_TESTS_MODEL_PROTOCOL_STATE_H_
#define EPS_TESTS_MODEL_PROTOCOL_STATE_H_

// One state of the protocol's model, as plain bytes, so that equal states have equal bytes.

#include <cstddef>
#include <cstdint>

namespace eps::model {

constexpr int kShards = 2;
constexpr int kParts = 2;
constexpr int kMaxStagesPerShard = 2;
constexpr int kSlots = 2;
constexpr int kMaxSteps = 4;
constexpr int kMaxMessages = 24;
constexpr int kMaxFacts = 15;
constexpr uint8_t kAllParts = (1 << kParts) - 1;
constexpr uint8_t kAllShards = (1 << kShards) - 1;

// The history of each step in 4 bits, the lowest for step 1: the recovery ("era") in which it was
// computed, which is unique, and whether it was skipped.
using Lineage = uint16_t;
constexpr uint8_t kSkipped = 8;

inline Lineage UpTo(Lineage lineage, int steps) {
  return static_cast<Lineage>(lineage & ((1u << (4 * steps)) - 1));
}
inline Lineage With(Lineage lineage, int step, int entry) {
  return static_cast<Lineage>(lineage | entry << (4 * (step - 1)));
}

// A contribution in flight: one part's gradient of one stage.
struct Push {
  uint8_t term = 0;
  uint8_t era = 0;  // invisible to the protocol
  uint8_t step = 0;
  uint8_t part : 1;
  uint8_t stage : 2;  // global index: shard * stages_per_shard + index in the shard
  uint8_t poisoned : 1;
  uint8_t mixed : 1;    // computed from weights of different lineages
  Lineage lineage = 0;  // of the weights from which it was computed

  Push() : part(0), stage(0), poisoned(0), mixed(0) {}
  uint64_t Bits() const {
    return uint64_t{term} << 40 | uint64_t{era} << 36 | uint64_t{step} << 32 |
           uint64_t{part} << 31 | uint64_t{stage} << 29 | uint64_t{poisoned} << 28 |
           uint64_t{mixed} << 27 | lineage;
  }
};

// A message of LAMB in flight: norms from shard 1 to the lead, or the lead's Trust to shard 1. Its
// content is represented by the history of the step for which it is: the weights that were
// measured, and the recovery in which their gradient was reduced.
struct LambMessage {
  enum class Kind : uint8_t { kNorms, kTrust };
  Kind kind = Kind::kNorms;
  uint8_t term = 0;
  uint8_t step = 0;
  uint8_t unused = 0;
  Lineage of = 0;

  static constexpr uint64_t kMark = uint64_t{1} << 63;  // in the bits of no Push
  uint64_t Bits() const {
    return kMark | uint64_t{kind == Kind::kTrust} << 62 | uint64_t{term} << 40 |
           uint64_t{step} << 32 | of;
  }
};
// The content of a Trust of norms of several histories, or of one shard's norms twice. No history
// of a step that was updated has these bits.
constexpr Lineage kMixed = 0xffff;

// A slot for a cut.
struct Cut {
  uint8_t valid = 0;  // 0 if empty, torn or being written
  uint8_t step = 0;
  uint8_t term = 0;
  uint8_t unused = 0;
  Lineage lineage = 0;
};

// A cut that is being written into a slot.
struct Flush {
  uint8_t active = 0;
  uint8_t slot = 0;
  uint8_t step = 0;
  uint8_t term = 0;
  Lineage lineage = 0;
};

// An entry of a contribution log.
struct Fact {
  enum class Kind : uint8_t { kNone, kPush, kDecision, kSession, kTrust };
  Kind kind = Kind::kNone;
  uint8_t step = 0;  // a cut of this step makes the fact unnecessary
  // Of a push: the stage's index in its shard. Of a session: it has the Trust of its decision.
  uint8_t own = 0;
  uint8_t part = 0;  // of a session: that Trust is kMixed
  // A push is poisoned; a decision, or a session's decision, skips; a Trust is kMixed.
  uint8_t flag = 0;
  uint8_t decided = 0;  // of a session: the step of the lead's last decision

  uint16_t Bits() const {
    return static_cast<uint16_t>(static_cast<int>(kind) | step << 3 | own << 6 | part << 7 |
                                 flag << 8 | decided << 9);
  }
};

// A shard's contribution log: facts that the youngest cut may need, in log order.
struct Log {
  uint8_t term = 0;  // durable: the term of the log; 0 if there is none
  uint8_t era = 0;   // invisible to the protocol
  uint8_t facts = 0;
  uint8_t durable = 0;  // how many facts survive any crash
  uint8_t known = 0;    // how many facts the process knows to be durable
  uint8_t next = 0;     // the next fact to replay
  uint8_t fresh = 0;    // the log was begun, but that is not durable yet
  uint8_t unused = 0;
  uint16_t batches = 0;           // one bit for each fact that begins a batch
  uint16_t fact[kMaxFacts] = {};  // Fact::Bits
};

// A server process and its disk.
struct Shard {
  // Durable.
  Cut slots[kSlots];
  uint8_t promised = 1;
  uint8_t opened = 1;     // the term of the last restore
  uint8_t base = 0;       // the step of the last restore
  uint8_t replaying = 0;  // a new process is replaying the log
  Log log;
  // In memory.
  uint8_t down = 0;     // the process is new and has not registered
  uint8_t loaded = 1;   // the state is in memory
  uint8_t serving = 1;  // the open term; 0 if there is none
  uint8_t era = 1;      // invisible to the protocol
  uint8_t open_step = 1;
  uint8_t updated = 0;                       // stages updated by the open step
  uint8_t counted[kMaxStagesPerShard] = {};  // contributing parts, by stage
  uint8_t poisoned = 0;                      // a counted contribution is not finite
  uint8_t begun = 0;                         // parts that began the open step here
  uint8_t due = 0;                           // the cut after the last step is not captured yet
  uint8_t watermark = 0;
  uint8_t measured = 0;      // the step whose norms it has sent since it registered
  uint8_t owes_session = 0;  // the replay has passed a cut
  uint8_t nameless[kMaxStagesPerShard] = {};  // parts counted by a replay that forgot their origin
  // In flight to the lead: the newest durable cut.
  uint8_t report_step = 0;
  uint8_t report_term = 0;
  Lineage lineage = 0;  // of the steps before open_step
  Flush flush;
  Flush late;  // issued before a restore that did not wait for it
};

// A worker process, which computes one part.
struct Worker {
  uint8_t term = 0;   // the term in which it works; 0 if it has to ask
  uint8_t step = 0;   // the step on which it works
  uint8_t begun = 0;  // shards on which it began the step and read the weights
  uint8_t sent = 0;   // its contributions are in flight
  uint8_t mixed = 0;
  uint8_t joined = 0;  // it joined at this step and computed none before
  uint8_t acked = 0;   // stages; only with logs, otherwise a count is its acknowledgement
  uint8_t unused = 0;
  Lineage lineage = 0;  // of the weights that it read
};

enum class Phase : uint8_t { kServing, kPromising, kRestoring, kLost, kReplaying };

// Bits of Lead::norms.
constexpr uint8_t kCounted = 1;
constexpr uint8_t kOtherHistory = 2;  // norms of another history than the lead's own shard has
constexpr uint8_t kTwice = 4;         // counted again

// The lead's view of the job.
struct Lead {
  Phase phase = Phase::kServing;
  uint8_t term = 1;
  uint8_t promised = 0;  // shards in the current recovery; so are the next two
  uint8_t restored = 0;
  uint8_t opened = 0;
  uint8_t base_step = 0;
  uint8_t base_term = 0;
  uint8_t durable[kShards] = {};  // the newest cut that the lead knows to be durable
  uint8_t decided_step = 0;       // sealed: the step of decided_skip
  uint8_t decided_skip = 0;
  uint8_t knows = 0;            // the replay has found the session, that is, who the shards are
  uint8_t norms[kShards] = {};  // kCounted, kOtherHistory, kTwice
  uint8_t owes_trust = 0;       // it has to send its Trust
  uint8_t unused = 0;
  Lineage trust = 0;  // the content of the Trust of decided_step; 0 if there is none
};

// The whole system.
struct State {
  Shard shards[kShards];
  Shard twin;  // a process on a copy of shard 1's folder, or the process that it displaced
  Worker workers[kParts];
  Lead lead;
  uint8_t eras = 1;       // the number of recoveries so far, plus one
  uint8_t committed = 0;  // the highest watermark that any shard has received
  uint8_t shard_crashes = 0;
  uint8_t worker_crashes = 0;
  uint8_t copied = 0;  // the twin exists
  uint8_t link_breaks = 0;
  uint32_t messages = 0;
  uint64_t message[kMaxMessages] = {};  // of Push and LambMessage, sorted, then zeros
};

inline size_t UsedWords(const State& state) {
  return sizeof(State) / 8 - kMaxMessages + state.messages;
}

}  // namespace eps::model

#endif  // EPS_TESTS_MODEL_PROTOCOL_STATE_H_
