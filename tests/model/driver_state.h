#ifndef EPS_TESTS_MODEL_DRIVER_STATE_H_
#define EPS_TESTS_MODEL_DRIVER_STATE_H_

// One state of the model of drivers, as plain bytes, so that equal states have equal bytes.

#include <cstddef>
#include <cstdint>

namespace eps::drivers {

constexpr int kShards = 2;
constexpr int kDrivers = 3;
constexpr uint8_t kAllShards = (1 << kShards) - 1;
constexpr int kMaxMessages = 28;

// From a driver to a shard or the lead.
struct Message {
  enum Kind : uint8_t { kCreate, kImport, kFinish, kReport };
  Kind kind = kCreate;
  uint8_t driver = 0;
  uint8_t generation = 0;
  uint8_t shard = 0;
  uint8_t step = 0;  // of a report

  uint16_t Bits() const {
    return static_cast<uint16_t>(kind | driver << 2 | generation << 4 | shard << 7 | step << 8);
  }
  static Message From(uint16_t bits) {
    Message message;
    message.kind = static_cast<Kind>(bits & 3);
    message.driver = bits >> 2 & 3;
    message.generation = bits >> 4 & 7;
    message.shard = bits >> 7 & 1;
    message.step = static_cast<uint8_t>(bits >> 8);
    return message;
  }
};

enum class Phase : uint8_t {
  kAbsent,
  kReady,    // it has the lock, or needs none
  kCreates,  // it has the lease, and sends CreateJob
  kImports,
  kFinishes,
  kDrives,
  kWritten,  // a checkpoint is written, but not renamed
  kAllowed,  // the lead has said that it may rename
  kDead,     // crashed, fenced, or finished
};

// A driver process.
struct Driver {
  Phase phase = Phase::kAbsent;
  uint8_t generation = 0;
  uint8_t step = 0;    // of its checkpoint
  uint8_t acks = 0;    // shards that answered its last request
  uint8_t beyond = 0;  // checkpoints that it published after it had lost its lease
};

// A server process, while the job imports.
struct Shard {
  uint8_t fence = 0;     // the highest generation that it has seen
  uint8_t content = 0;   // the generation of the driver whose weights it has
  uint8_t finished = 0;  // it reports that it can open
};

// A checkpoint by its writer. Ordered by generation, then by step.
struct Mark {
  uint8_t generation = 0;
  uint8_t step = 0;

  bool operator<(const Mark& other) const {
    return generation != other.generation ? generation < other.generation : step < other.step;
  }
};

// The whole system.
struct State {
  Driver drivers[kDrivers];
  Shard shards[kShards];
  // The record of the lead.
  uint8_t generation = 0;  // of the last claim
  uint8_t lease = 0;       // 1 + the driver that has it
  uint8_t excused = 1;     // the next claim has a reason: nobody has claimed, or a fault ended it
  Mark reported;
  // The job.
  uint8_t opened = 0;
  uint8_t step = 0;  // its border
  // The output folder.
  uint8_t lock = 0;  // 1 + the driver that has it
  Mark latest;
  uint8_t published = 0;  // the highest generation that has published
  // Faults so far.
  uint8_t crashes = 0;
  uint8_t expiries = 0;
  uint8_t lead_crashes = 0;
  uint8_t shard_crashes = 0;
  uint8_t rollbacks = 0;
  uint8_t messages = 0;
  uint8_t unused[2] = {};
  uint16_t message[kMaxMessages] = {};  // Message::Bits, ascending
};
static_assert(offsetof(State, message) % 8 == 0);

inline size_t UsedWords(const State& state) {
  return offsetof(State, message) / 8 + (state.messages + 3u) / 4;
}

}  // namespace eps::drivers

#endif  // EPS_TESTS_MODEL_DRIVER_STATE_H_
