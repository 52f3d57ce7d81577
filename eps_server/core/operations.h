#ifndef EPS_SERVER_CORE_OPERATIONS_H_
#define EPS_SERVER_CORE_OPERATIONS_H_

// What ShardCore has under way: RPCs that wait, parts, and calls on the backend.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "compression/codec.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/push/contribution_ledger.h"
#include "eps_server/core/fetch/encoded_copies.h"
#include "eps_server/core/push/residuals.h"
#include "base/job/job_spec.h"
#include "storage/cuts/cut.h"

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
struct ChunkState {
  ChunkId id;
  Version version;
  bool updating = false;
  std::vector<ParkedFetch> parked;
  std::vector<std::pair<PartId, uint64_t>> held;  // bytes charged to parts, tied chunks apart
  // Sealed mode: the reduced gradient that waits for the decision.
  bool reducing = false;
  std::shared_ptr<const EncodedChunk> reduced;
  uint64_t tokens = 0;     // that counted in the chunk's gradient
  bool nonfinite = false;  // complete, but without a gradient: the step will be skipped
};
struct OpenFetch {
  v1::FetchRequest request;
  uint32_t chunks_left = 0;
  uint64_t since_ms = 0;
};
struct Offer {  // a header that has no credit yet
  StreamId stream;
  v1::PushHeader header;
  uint64_t since_ms = 0;
};
struct Incoming {  // credited: the payload is on its way
  v1::PushHeader header;
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

// Of a contribution, as its header says.
inline ContributionLedger::Place PlaceOf(const v1::ContributionKey& key) {
  return {ChunkId(key.chunk()), StageId(key.use_stage()),
          TreeRange{key.part_first(), key.part_count()}};
}
// Which process sent it, and what tells two encodings of it apart.
inline ContributionLedger::Origin OriginOf(const v1::PushHeader& header) {
  return {header.worker_nonce(), header.bytes() << 32 | header.crc32c()};
}

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
struct LogOp {};  // also the begin of a log
struct ReadLogOp {};
struct CutOp {
  CutId cut;
  std::optional<StreamId> import;  // the cut is of imported state: whom to tell
};
using Op = std::variant<ReadOp, StatsOp, UpdateOp, ImportOp, ExportOp, RecoverOp, PromiseOp,
                        QuiesceOp, RestoreOp, CutOp, ScrubOp, LogOp, ReadLogOp>;

// Whether a call of that kind is under way.
template <class Kind>
bool HasOp(const std::unordered_map<OpId, Op>& ops) {
  for (const auto& [id, op] : ops) {
    if (std::holds_alternative<Kind>(op)) return true;
  }
  return false;
}

// Steps whose statistics a shard keeps, because the lead may not have them.
inline constexpr size_t kStatsKept = 2;

// A contribution log that is being read: what it was, and what was read and not applied yet.
struct LogReplay {
  FoundLog log;
  std::deque<LogEntry> entries;
  bool ended = false;  // there is nothing else to read
  // A border with a cut was passed again, whose session may not have come into the log before.
  bool owes_session = false;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_OPERATIONS_H_
