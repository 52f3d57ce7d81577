#ifndef EPS_SERVER_CORE_FETCH_STAGE_CLOCK_H_
#define EPS_SERVER_CORE_FETCH_STAGE_CLOCK_H_

// Measures where the time of a stage goes, as one shard sees it: the shard quantizes the weights
// (T_JIT), sends them (T_wire), and the worker computes the stage (T_worker). The slack of a stage
// is T_worker minus the T_JIT of the next stage; when it is negative, workers wait for quantization
// (JIT-Q, MLSys 2024).

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/job/layout/visits.h"
#include "eps/v1/control.pb.h"

namespace eps {

// Reads no clock: callers pass the time. Thread-compatible.
class StageClock {
 public:
  explicit StageClock(size_t stages) : stages_(stages) {}

  // Adds the time that encoding one chunk of a stage took.
  void Encoded(StageId stage, double seconds) { stages_[stage.value()].jit_seconds += seconds; }
  // A worker requests a stage: it enters this stage and leaves the one before.
  void Fetched(StreamId stream, Visit visit, uint64_t now_ms);
  // The shard hands bytes of a stage to the transport; Drained follows when the transport has sent
  // everything of the stream.
  void Sent(StreamId stream, StageId stage, uint64_t now_ms);
  void Drained(StreamId stream, uint64_t now_ms);
  void Closed(StreamId stream) { streams_.erase(stream); }

  // Appends to `status` the mean times of every visited stage.
  void Fill(const std::vector<std::string>& names, v1::StatusReply* status) const;

 private:
  // Sums over all visits of one stage.
  struct Stage {
    uint64_t visits = 0;  // by all workers
    uint64_t stays = 0;   // visits whose length is known
    double jit_seconds = 0;
    double wire_seconds = 0;
    double worker_seconds = 0;
  };
  // The visit of one worker, and the stage whose bytes its stream carries.
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

#endif  // EPS_SERVER_CORE_FETCH_STAGE_CLOCK_H_
