#ifndef EPS_TESTS_MODEL_GATE_STATE_H_
#define EPS_TESTS_MODEL_GATE_STATE_H_

// One state of the model of gates, as plain bytes, so that equal states have equal bytes.

#include <cstddef>
#include <cstdint>

namespace eps::gates {

constexpr int kShards = 2;
constexpr int kDrivers = 2;
constexpr int kHolders = kDrivers + 1;
constexpr int kOperator = kDrivers;  // the holder that pauses the job
constexpr uint8_t kAllShards = (1 << kShards) - 1;
constexpr int kMaxQueue = 12;
constexpr int kMaxRequests = 6;

// A gate is stored as its step plus 1; kNone is the absence of a gate.
constexpr uint8_t kNone = 0;
constexpr uint8_t kLeadChooses = 15;  // in a request: the lead chooses the border

enum class Life : uint8_t { kDown, kRecovering, kOpen };

// A server process. `open`, `durable` and, with a log, all that follows from contributions outlive
// it.
struct Shard {
  Life life = Life::kOpen;
  uint8_t open = 1;     // the open step
  uint8_t counted = 0;  // the contribution to it
  uint8_t decided = 0;  // it knows the decisions up to this step
  uint8_t gate = kNone;
  uint8_t answer = 0;   // the change that it has and did not tell the lead yet; 0: none
  uint8_t first = 0;    // the border in that answer; 0: not known before it is open
  uint8_t durable = 0;  // the step of its youngest cut
  uint8_t cutting = 0;  // the step of a cut that is not durable yet
  uint8_t drains = 0;   // it is asked to end
  uint8_t fresh = 0;    // its process has not taken part in a term
  uint8_t pushes = 0;   // volatile job: 1 if the open step brings residuals, 2 if not
  uint8_t whole = 1;    // it has the residuals of the last border
};

// The process of the lead. Facts about shard 1 are as of its last message.
struct Lead {
  uint8_t decided = 0;             // the last step on which it decided
  uint8_t cuts = 0;                // a bit for each step that ends with a cut
  uint8_t stats = 0;               // shard 1 has reported the statistics of this step
  uint8_t durable = 0;             // shard 1 has reported this cut
  uint8_t imported = 0;            // shards whose state it knows to be restored
  uint8_t revision = 0;            // of the gates
  uint8_t answered[kShards] = {};  // the changes that the shards have
  uint8_t border[kShards] = {};    // the borders in their answers
  uint8_t gate[kHolders] = {};     // of drivers and the operator
  uint8_t drain[kShards] = {};     // gates of servers that drain
  uint8_t told = 0;                // shards that it told to end
  uint8_t serial[kHolders] = {};   // the last request of each holder
  uint8_t call[kHolders] = {};     // a request waits for the shards to have this change; 0: none
};

enum class Phase : uint8_t {
  kAbsent,
  kAsks,   // for a gate, or to have none
  kHolds,  // it has its answer
  kFree,   // it holds nothing and is finished
  kDead,
};

// A driver, or the operator.
struct Holder {
  Phase phase = Phase::kAbsent;
  uint8_t gate = kNone;   // that it asks for or holds; of a pause: the last border that it allows
  uint8_t serial = 0;     // of its last request
  uint8_t sure = 0;       // its answer still holds: nothing happened to lead, term or lease
  uint8_t exported = 0;   // shards whose state at its border it has read
  uint8_t lost_gate = 0;  // its gate may be gone with the lead's process, or the border with a term
};

// From the lead to shard 1.
struct Message {
  enum Kind : uint8_t { kGate, kDecision, kOpen, kDrained };
  Kind kind = kGate;
  uint8_t value = 0;  // a gate, or a step
  uint8_t revision = 0;

  uint16_t Bits() const { return static_cast<uint16_t>(kind | value << 2 | revision << 6); }
  static Message From(uint16_t bits) {
    return {static_cast<Kind>(bits & 3), static_cast<uint8_t>(bits >> 2 & 15),
            static_cast<uint8_t>(bits >> 6)};
  }
};

// From a holder to the lead: sets, moves or lifts its gate.
struct Request {
  uint8_t holder = 0;
  uint8_t serial = 0;
  uint8_t gate = kNone;

  uint16_t Bits() const { return static_cast<uint16_t>(1 + holder + (serial << 2) + (gate << 8)); }
  static Request From(uint16_t bits) {
    return {static_cast<uint8_t>((bits & 3) - 1), static_cast<uint8_t>(bits >> 2 & 63),
            static_cast<uint8_t>(bits >> 8)};
  }
};

// The whole system.
struct State {
  Shard shards[kShards];
  Lead lead;
  Holder holders[kHolders];
  uint8_t lease = 0;  // in the record of the lead: 1 + the driver that has the lease of the job
  // The worker.
  uint8_t step = 1;    // that it computes
  uint8_t begun = 0;   // shards that answered its begin
  uint8_t pushed = 0;  // shards that counted its contribution
  uint8_t link = 1;    // whether the link is up
  // Faults so far.
  uint8_t pauses = 0;
  uint8_t drains = 0;
  uint8_t crashes = 0;
  uint8_t lead_crashes = 0;
  uint8_t breaks = 0;
  uint8_t driver_crashes = 0;
  uint8_t expiries = 0;
  uint8_t duplicates = 0;
  uint8_t losses = 0;
  uint8_t crashed = 0;  // since the last term began
  uint8_t ended = 0;    // shards whose process ended because it had drained
  uint8_t queued = 0;
  uint8_t requests = 0;
  uint16_t queue[kMaxQueue] = {};       // Message::Bits, the oldest first
  uint16_t request[kMaxRequests] = {};  // Request::Bits, ascending
};

inline size_t UsedWords(const State&) { return sizeof(State) / 8; }

}  // namespace eps::gates

#endif  // EPS_TESTS_MODEL_GATE_STATE_H_
