#ifndef EPS_SERVER_CORE_OPERATIONS_H_
#define EPS_SERVER_CORE_OPERATIONS_H_

// What ShardCore has under way: RPCs that wait, parts, and calls on the backend.

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/encoded_copies.h"
#include "eps_server/core/residuals.h"
#include "spec/job_spec.h"
#include "storage/cut.h"

namespace eps {

struct FetchTag {
  StreamId stream;
  uint64_t tag = 0;
  friend bool operator<(const FetchTag& a, const FetchTag& b) {
    return a.stream != b.stream ? a.stream < b.stream : a.tag < b.tag;
  }
};
struct ParkedFetch {
  FetchTag tag;
  Version version;
  Visit visit;
  Axis axis;
  uint32_t view = 0;  // FetchSlice.view
  uint64_t since_ms = 0;
};
struct ParkedBegin {
  StreamId stream;
  v1::BeginStepRequest request;
  uint64_t since_ms = 0;
};
struct PartState {
  uint64_t begun_step = 0;
  uint64_t nonce = 0;  // of the worker that began it
  std::optional<StreamId> push_stream;
  std::optional<TimerId> lost_timer;
  uint64_t last_seen_ms = 0;
};
struct ImportJob {
  StreamId stream;
  uint32_t ops_left = 0;
  bool finish = false;
  v1::Imported border;
};
struct ExportJob {
  v1::ExportStateRequest request;
  std::vector<ChunkId> chunks;
  size_t next = 0;
  std::vector<Residuals::Place> residuals;  // of the chunk before `next`, to be sent, last first
  bool started = false;
  uint64_t since_ms = 0;
};
struct Watcher {
  uint64_t after_step = 0;
  uint64_t after_evaluation = 0;
  uint64_t until_evaluation = 0;

  // Whether the record is news to the watcher, who then knows it.
  bool Takes(const v1::StepRecord& record) {
    uint64_t& after = record.has_evaluation() ? after_evaluation : after_step;
    if (record.step() <= after) return false;
    after = record.step();
    return true;
  }
};

// Calls on the backend that are under way.
struct ReadOp {
  EncodedCopies::Key copy;
  Version version;
  std::vector<ParkedFetch> fetches;  // none yet: ahead of the first fetch
};
struct UpdateOp {
  ChunkId chunk;
  std::vector<EncodedCopies::Key> copies;         // that the update encodes
  std::vector<std::pair<PartId, uint64_t>> held;  // to release; tied contributions apart
  double clip_factor = 1;
};
struct StatsOp {
  ChunkId chunk;
  std::vector<std::pair<PartId, uint64_t>> held;
};
struct ImportOp {
  StreamId stream;
  ChunkId chunk;
  Version version;
};
struct ExportOp {
  StreamId stream;
  ChunkId chunk;
};
// Of a durable shard, in the order of a recovery.
struct RecoverOp {
  bool promised = false;  // the term of now; else the process has just begun
};
struct PromiseOp {};
struct QuiesceOp {};
struct RestoreOp {
  std::optional<CutId> cut;  // nullopt: everything is imported again
};
struct ScrubOp {};
struct CutOp {
  CutId cut;
  std::optional<StreamId> import;  // the cut is of imported state: whom to tell
};
using Op = std::variant<ReadOp, StatsOp, UpdateOp, ImportOp, ExportOp, RecoverOp, PromiseOp,
                        QuiesceOp, RestoreOp, CutOp, ScrubOp>;

}  // namespace eps

#endif  // EPS_SERVER_CORE_OPERATIONS_H_
