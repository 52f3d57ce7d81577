#ifndef EPS_SERVER_CORE_STEPS_STAGE_CLOCK_H_
#define EPS_SERVER_CORE_STEPS_STAGE_CLOCK_H_

// Where the time of a stage goes, seen from one shard: quantizing its weights (T_JIT), sending them
// (T_wire), and the worker's stay at it (T_worker). The slack of a stage is T_worker less the T_JIT
// of the stage behind it: below zero, quantization holds the workers up (JIT-Q, MLSys 2024).

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps_server/core/fetch/encoded_copies.h"

namespace eps {

// Times come in, as everywhere in the core. Thread-compatible.
class StageClock {
 public:
  explicit StageClock(size_t stages) : stages_(stages) {}

  // One chunk of a stage was encoded.
  void Encoded(StageId stage, double seconds) { stages_[stage.value()].jit_seconds += seconds; }
  // A worker asks for a stage: it begins to need it, and is done with an earlier one.
  void Fetched(StreamId stream, Visit visit, uint64_t now_ms);
  // Bytes of a stage go to the transport, which has taken all of a stream later.
  void Sent(StreamId stream, StageId stage, uint64_t now_ms);
  void Drained(StreamId stream, uint64_t now_ms);
  void Closed(StreamId stream) { streams_.erase(stream); }

  // Means over the visits so far, for stages that were visited.
  void Fill(const std::vector<std::string>& names, v1::StatusReply* status) const;

 private:
  struct Stage {
    uint64_t visits = 0;  // by all workers
    uint64_t stays = 0;   // whose length is known
    double jit_seconds = 0;
    double wire_seconds = 0;
    double worker_seconds = 0;
  };
  struct Stream {
    std::optional<Visit> visit;
    uint64_t since_ms = 0;
    std::optional<StageId> sending;
    uint64_t sending_since_ms = 0;
  };

  std::vector<Stage> stages_;
  std::map<StreamId, Stream> streams_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_STAGE_CLOCK_H_
