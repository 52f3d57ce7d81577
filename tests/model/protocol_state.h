#ifndef EPS_TESTS_MODEL_PROTOCOL_STATE_H_
#define EPS_TESTS_MODEL_PROTOCOL_STATE_H_

// One state of the protocol's model: plain bytes, so that equal states have equal bytes.

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

// What became of each step: 4 bits, the lowest for step 1. The recovery ("era") in which it was
// computed, which is never the same twice, and whether it was skipped.
using Lineage = uint16_t;
constexpr uint8_t kSkipped = 8;

inline Lineage UpTo(Lineage lineage, int steps) {
  return static_cast<Lineage>(lineage & ((1u << (4 * steps)) - 1));
}
inline Lineage With(Lineage lineage, int step, int entry) {
  return static_cast<Lineage>(lineage | entry << (4 * (step - 1)));
}

// A contribution on its way: one part's gradient of one stage.
struct Push {
  uint8_t term = 0;
  uint8_t era = 0;  // not visible to the protocol
  uint8_t step = 0;
  uint8_t part : 1;
  uint8_t stage : 2;  // of all: shard * stages_per_shard + its own
  uint8_t poisoned : 1;
  uint8_t mixed : 1;    // computed from weights of different lineages
  Lineage lineage = 0;  // of the weights that it was computed from

  Push() : part(0), stage(0), poisoned(0), mixed(0) {}
  uint64_t Bits() const {
    return uint64_t{term} << 40 | uint64_t{era} << 36 | uint64_t{step} << 32 |
           uint64_t{part} << 31 | uint64_t{stage} << 29 | uint64_t{poisoned} << 28 |
           uint64_t{mixed} << 27 | lineage;
  }
};

struct Cut {
  uint8_t valid = 0;  // 0: empty, torn or being written
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

// What counts, in a contribution log.
struct Fact {
  enum class Kind : uint8_t { kNone, kPush, kDecision, kSession };
  Kind kind = Kind::kNone;
  uint8_t step = 0;  // a cut of it makes the fact needless
  uint8_t own = 0;   // of a push
  uint8_t part = 0;
  uint8_t flag = 0;     // a push is poisoned; a decision, or the one in a session, skips
  uint8_t decided = 0;  // of a session: the step of the lead's last decision

  uint16_t Bits() const {
    return static_cast<uint16_t>(static_cast<int>(kind) | step << 2 | own << 5 | part << 6 |
                                 flag << 7 | decided << 8);
  }
};

// A shard's contribution log: facts that the youngest cut may need, in their order.
struct Log {
  uint8_t term = 0;  // durable: it is the log of this term; 0: there is none
  uint8_t era = 0;   // not visible to the protocol
  uint8_t facts = 0;
  uint8_t durable = 0;  // of these, whatever happens
  uint8_t known = 0;    // of these, as far as the process knows
  uint8_t next = 0;     // the one to replay
  uint8_t fresh = 0;    // it is begun, and that is not durable yet
  uint8_t unused = 0;
  uint16_t batches = 0;           // a bit for each fact that begins a batch
  uint16_t fact[kMaxFacts] = {};  // Fact::Bits
};

struct Shard {
  // Durable.
  Cut slots[kSlots];
  uint8_t promised = 1;
  uint8_t opened = 1;     // the term of the last restore
  uint8_t base = 0;       // its step
  uint8_t replaying = 0;  // its process is new and applies the log
  Log log;
  // In memory.
  uint8_t down = 0;     // its process is new and has not registered
  uint8_t loaded = 1;   // memory holds the state
  uint8_t serving = 1;  // the open term; 0: none
  uint8_t era = 1;      // not visible to the protocol
  uint8_t open_step = 1;
  uint8_t updated = 0;                       // stages that are past the open step
  uint8_t counted[kMaxStagesPerShard] = {};  // parts, by stage
  uint8_t poisoned = 0;                      // a counted contribution is not finite
  uint8_t begun = 0;                         // parts that began the open step here
  uint8_t due = 0;                           // the cut behind the last step is not captured
  uint8_t watermark = 0;
  uint8_t unused = 0;
  uint8_t owes_session = 0;                   // the replay has passed a cut
  uint8_t nameless[kMaxStagesPerShard] = {};  // counted by a replay that forgot whose they are
  // On its way to the lead: the newest cut that became durable.
  uint8_t report_step = 0;
  uint8_t report_term = 0;
  Lineage lineage = 0;  // of the steps below open_step
  Flush flush;
  Flush late;  // issued before a restore that did not wait for it
};

struct Worker {
  uint8_t term = 0;   // that it works in; 0: it has to ask
  uint8_t step = 0;   // that it works on
  uint8_t begun = 0;  // shards on which it began the step and read the weights
  uint8_t sent = 0;   // its contributions are on their way
  uint8_t mixed = 0;
  uint8_t joined = 0;  // it was told to begin here, and computed no step before
  uint8_t acked = 0;   // stages; with logs only: else what is counted is as good as told
  uint8_t unused = 0;
  Lineage lineage = 0;  // of what it has read
};

enum class Phase : uint8_t { kServing, kPromising, kRestoring, kLost, kReplaying };

struct Lead {
  Phase phase = Phase::kServing;
  uint8_t term = 1;
  uint8_t promised = 0;  // shards, of the recovery under way, and so below
  uint8_t restored = 0;
  uint8_t opened = 0;
  uint8_t base_step = 0;
  uint8_t base_term = 0;
  uint8_t durable[kShards] = {};  // newest cut that it knows of
  uint8_t decided_step = 0;       // sealed: the step of the decision below
  uint8_t decided_skip = 0;
  uint8_t knows = 0;  // its replay has found who the shards are
};

struct State {
  Shard shards[kShards];
  Shard twin;  // a process on a copy of shard 1's folder, or the one that it has displaced
  Worker workers[kParts];
  Lead lead;
  uint8_t eras = 1;       // recoveries so far, and one
  uint8_t committed = 0;  // the highest step that was ever below the watermark
  uint8_t shard_crashes = 0;
  uint8_t worker_crashes = 0;
  uint8_t copied = 0;  // the twin is there
  uint8_t unused[7] = {};
  uint32_t messages = 0;
  uint64_t message[kMaxMessages] = {};  // Push::Bits, sorted; zeros behind the last one
};

}  // namespace eps::model

#endif  // EPS_TESTS_MODEL_PROTOCOL_STATE_H_
