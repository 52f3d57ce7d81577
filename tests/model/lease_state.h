#ifndef EPS_TESTS_MODEL_LEASE_STATE_H_
#define EPS_TESTS_MODEL_LEASE_STATE_H_

// One state of the model of leases, as plain bytes, so that equal states have equal bytes.

#include <cstddef>
#include <cstdint>

namespace eps::leases {

constexpr int kShards = 2;
constexpr int kParts = 2;
constexpr int kProcesses = 3;
constexpr uint8_t kAllShards = (1 << kShards) - 1;
constexpr uint8_t kAllParts = (1 << kParts) - 1;
constexpr uint8_t kNobody = 15;
constexpr int kMaxMessages = 52;

// A request on its way to a shard, or with kAnswer the answer to one on its way back.
struct Message {
  enum Kind : uint8_t { kBegin, kPush, kReport, kGrant };  // kGrant: from the lead to shard 1
  Kind kind = kBegin;
  uint8_t term = 1;
  uint8_t process = 0;
  uint8_t part = 0;
  uint8_t generation = 0;
  uint8_t step = 0;  // a begin of step 0 is a probe
  uint8_t shard = 0;
  // Of a begin: the process computed the step before, whose loss travels with the request.
  // Of a push: the gradient contains the residual that this process kept.
  uint8_t flag = 0;
  uint8_t other_weights = 0;  // of a push: computed from another version than the step's
  uint8_t is_answer = 0;
  uint8_t answer = 0;  // an Answer, or of a probe the step that the shard has open

  uint16_t Bits() const {
    return static_cast<uint16_t>(kind | (term - 1) << 2 | process << 3 | part << 5 |
                                 generation << 6 | step << 8 | shard << 10 | flag << 11 |
                                 other_weights << 12 | is_answer << 13 | answer << 14);
  }
  static Message From(uint16_t bits) {
    Message message;
    message.kind = static_cast<Kind>(bits & 3);
    message.term = static_cast<uint8_t>((bits >> 2 & 1) + 1);
    message.process = bits >> 3 & 3;
    message.part = bits >> 5 & 1;
    message.generation = bits >> 6 & 3;
    message.step = bits >> 8 & 3;
    message.shard = bits >> 10 & 1;
    message.flag = bits >> 11 & 1;
    message.other_weights = bits >> 12 & 1;
    message.is_answer = bits >> 13 & 1;
    message.answer = bits >> 14 & 3;
    return message;
  }
};

enum Answer : uint8_t {
  kFenced = 0,   // also of a probe
  kDone = 1,     // begun, acknowledged, or reported
  kHave = 2,     // begun, and the shard has counted the part's contribution
  kRestart = 3,  // the step is over everywhere: probe again
};

// A process's work on one part. A member that names shards is a bitmask of them.
struct Task {
  uint8_t generation = 0;  // of its lease; 0 without work
  uint8_t term = 0;
  uint8_t step = 0;           // 0 while it probes
  uint8_t begun = 0;          // shards that answered its begin or probe
  uint8_t have = 0;           // shards that had counted the contribution before
  uint8_t fetched = 0;        // shards
  uint8_t pushed = 0;         // shards
  uint8_t acked = 0;          // shards
  uint8_t reported = 0;       // the lead has the loss of this step
  uint8_t residuals = 0;      // shards whose residual it keeps from the step before
  uint8_t computed = 0;       // it computed the step before
  uint8_t other_weights = 0;  // it fetched a version that it did not ask for
  uint8_t probed = 0;         // the open steps of the shards, 2 bits each
};

// A server process.
struct Shard {
  uint8_t open_step = 1;
  uint8_t old = 0;               // the version before the open step's is kept
  uint8_t counted[kParts] = {};  // 1 + the process whose contribution counts; 0 for none
  uint8_t last[kParts] = {};     // the same of the step before
  uint8_t begun[kParts] = {};    // the highest step that the part has begun
  uint8_t fence[kParts] = {};    // the highest generation seen
  uint8_t granted[kParts] = {};  // the last generation that the lead has announced
  uint8_t credit = 0;            // 1 + the sender (2 * process + part) that has the credit
};

enum class Life : uint8_t { kAbsent, kAlive, kCrashed, kLeft };

// The whole system.
struct State {
  Shard shards[kShards];
  Task tasks[kProcesses][kParts];
  Life lives[kProcesses] = {Life::kAlive, Life::kAlive, Life::kAlive};
  // The lead.
  uint8_t term = 1;
  uint8_t holder[kParts] = {kNobody, kNobody};
  uint8_t generation[kParts] = {};
  uint8_t losses[2] = {};  // parts whose loss of step 1 and of step 2 it has
  uint8_t decided = 0;     // sealed: the last step on which it decided
  // Faults so far.
  uint8_t crashes = 0;
  uint8_t expiries = 0;
  uint8_t leaves = 0;
  uint8_t shard_crashes = 0;
  uint8_t new_terms = 0;
  uint8_t strangers = 0;
  uint8_t breaks = 0;
  uint8_t link_lost = 0;  // shard 1 has not registered again
  uint8_t messages = 0;
  uint8_t unused[4] = {};
  uint16_t message[kMaxMessages] = {};  // Message::Bits, sorted, followed by zeros
};
static_assert(offsetof(State, message) % 8 == 0);

inline size_t UsedWords(const State& state) {
  return offsetof(State, message) / 8 + (state.messages + 3u) / 4;
}

}  // namespace eps::leases

#endif  // EPS_TESTS_MODEL_LEASE_STATE_H_
