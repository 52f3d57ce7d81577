#ifndef EPS_STORAGE_REQUESTS_H_
#define EPS_STORAGE_REQUESTS_H_

// The operations of a state backend, one struct each. StateBackend documents what each of them does
// and what it completes with.

#include <optional>
#include <variant>

#include "base/bytes.h"
#include "base/ids.h"
#include "compression/codec.h"
#include "optimizer/update_request.h"
#include "storage/cuts/cut.h"

namespace eps {

// ---- Operations of one chunk. UpdateRequest is one of them.

// Returns the chunk's weights, encoded.
struct ReadRequest {
  ChunkId chunk;
  Version version;
  const Codec* codec = nullptr;
  Axis axis = Axis::kRow;
};

// Returns the chunk's weights and state fields in FP32.
struct ReadStateRequest {
  ChunkId chunk;
  Version version;
};

// Replaces the chunk's weights and state fields.
struct WriteStateRequest {
  ChunkId chunk;
  Version version;
  Bytes state;
};

// Sets the chunk to its values before training.
struct InitializeRequest {
  ChunkId chunk;
};

// Reduces the inputs of `update` and measures the sum; leaves the state alone.
struct StatsRequest {
  UpdateRequest update;
};

// ---- Operations of the shard's cuts and log. CutRequest is one of them.

// Cancels waiting operations and awaits running ones.
struct QuiesceRequest {};

// Finds the cuts, the promised term and the log on the disk.
struct RecoverRequest {};

// Returns the shard to a cut, in a new term.
struct RestoreRequest {
  std::optional<CutId> base;
  Term term;
};

// Refuses all earlier terms from now on, durably.
struct PromiseRequest {
  Term term;
};

// Checks the next piece of the kept cuts for damage.
struct ScrubRequest {};

// Begins an empty contribution log.
struct StartLogRequest {
  FoundLog log;
};

// Appends an entry to the contribution log.
struct LogRequest {
  LogEntry entry;
};

// Returns the next entries of the log that RecoverRequest found.
struct ReadLogRequest {};

using ChunkRequest = std::variant<ReadRequest, ReadStateRequest, WriteStateRequest,
                                  InitializeRequest, StatsRequest, UpdateRequest>;
using DurableRequest =
    std::variant<CutRequest, QuiesceRequest, RecoverRequest, RestoreRequest, PromiseRequest,
                 ScrubRequest, StartLogRequest, LogRequest, ReadLogRequest>;
using Request = std::variant<ChunkRequest, DurableRequest>;

}  // namespace eps

#endif  // EPS_STORAGE_REQUESTS_H_
