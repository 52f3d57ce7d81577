#ifndef EPS_SERVER_CORE_OPERATIONS_H_
#define EPS_SERVER_CORE_OPERATIONS_H_

// What ShardCore has under way: fetches that wait for a version, and calls on the backend.

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "eps_server/core/encoded_copies.h"
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
  CutId cut;
};
struct CutOp {
  CutId cut;
  std::optional<StreamId> import;  // the cut is of imported state: whom to tell
};
using Op = std::variant<ReadOp, StatsOp, UpdateOp, ImportOp, ExportOp, RecoverOp, PromiseOp,
                        QuiesceOp, RestoreOp, CutOp>;

}  // namespace eps

#endif  // EPS_SERVER_CORE_OPERATIONS_H_
