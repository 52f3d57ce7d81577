#ifndef EPS_STORAGE_REQUESTS_H_
#define EPS_STORAGE_REQUESTS_H_

// The operations of a state backend, one struct each, with the contract of each operation.
// StateBackend::Submit begins them.

#include <optional>
#include <type_traits>
#include <variant>

#include "base/bytes.h"
#include "base/ids.h"
#include "compression/codec.h"
#include "optimizer/update_request.h"
#include "storage/cuts/cut.h"

namespace eps {

// ---- Operations of one chunk.
//
// UpdateRequest (optimizer/update_request.h) is one of them: decodes, reduces, updates and encodes
// in one pass over the chunk. Completes with UpdateResult.

// Encodes the weights at `version`. Completes with Bytes, which never change. FailedPrecondition
// with both versions if the chunk is at another one. A frozen chunk with content is at every
// version, here and below.
struct ReadRequest {
  ChunkId chunk;
  Version version;
  const Codec* codec = nullptr;  // borrowed until the operation completes
  Axis axis = Axis::kRow;
};

// Completes with Bytes: the weights at `version`, then each state field, FP32, in element order
// (Segment::offset). FailedPrecondition with both versions if the chunk is at another one.
struct ReadStateRequest {
  ChunkId chunk;
  Version version;
};

// The inverse of ReadStateRequest: sets the chunk's content and version. InvalidArgument if the
// size is wrong.
struct WriteStateRequest {
  ChunkId chunk;
  Version version;
  Bytes state;
};

// Sets the chunk to the spec's initial values and zero state, at Version(0).
struct InitializeRequest {
  ChunkId chunk;
};

// Decodes and reduces without an update. Completes with UpdateResult, whose `reduced` replaces the
// inputs in a later UpdateRequest. Sealed mode needs this because it needs the norm of the whole
// gradient before it updates. Does not access the state. The sum is in FP32, or in the encoding of
// the input if there is only one: in memory, or where the state is if caps().stores_gradients. If
// an earlier gradient of the chunk still has its place there, the sum stays in memory.
struct ReduceRequest {
  UpdateRequest update;
};

// Measures the chunk for the trust ratios of its tensors, with the gradient and the numbers of
// `update`, whose `trust_ratios` are not used. Completes with MeasureResult. Changes nothing.
// REQUIRES an optimizer that adapts; otherwise aborts the process. FailedPrecondition and
// InvalidArgument as an update.
struct MeasureRequest {
  UpdateRequest update;
};

// ---- Operations of the shard's cuts. REQUIRES caps().durable; otherwise Submit aborts the
// process. If an I/O error occurs in one of these operations or in an update, the operation
// completes with DataLoss (bad checksum; names file and offset) or Internal (device error; names
// file, offset and errno). End the process after such an error: the backend does not retry.

// Makes durable the state that results from all earlier calls and no later one: the chunks, and
// `content`, whose records are those since the previous cut. Completes after the data and then one
// record have been synced. Cuts complete in order. FailedPrecondition if a chunk is not at the
// border's version. Later updates may have to wait until the cut has captured their chunk, and then
// until Recycle frees the slot that they need.
struct CutRequest {
  CutBorder border;
  CutContent content;
};

// Cancels waiting updates and cuts (see CutRequest), then completes once no earlier operation can
// still reach memory or disk.
struct QuiesceRequest {};

// Completes with RecoveredState. Reads the records and footers of the cuts, not the tensors. A
// damaged cut counts as absent, which is logged; DataLoss if all are damaged.
struct RecoverRequest {};

// REQUIRES QuiesceRequest, or that no operation was begun. Durably records {term, base}, which
// discards all cuts younger than `base`; then loads the state of `base` into the shard. Completes
// with CutContent. NotFound if the shard lacks the cut. Without a base, discards all cuts and
// leaves the shard without state, so that all slots can be overwritten.
struct RestoreRequest {
  std::optional<CutId> base;
  Term term;
};

// Once this completes, the shard never serves an earlier term again, even after a crash.
// FailedPrecondition names the later term if one was promised.
struct PromiseRequest {
  Term term;
};

// Reads and checks the next chunk of the kept cuts, or the next piece of their residuals, so that
// damage is found while the next cut can heal it. Completes with ScrubResult; with DataLoss only if
// the damaged bytes are the state itself, of which there is no other copy. Occupies at most one
// staging buffer. Submit one at a time.
struct ScrubRequest {};

// ---- Operations of the contribution log. REQUIRES caps().log_steps > 0. I/O errors: as above.

// Discards everything logged so far; the new, empty log is durable once this completes. `log.base`
// is the cut whose state the shard has. LogRequest need not wait for completion.
// FailedPrecondition if a term other than log.id.term is promised.
struct StartLogRequest {
  FoundLog log;
};

// Completes once this entry and all earlier ones are durable. A cut becomes durable only after all
// earlier entries, and frees the room of entries up to its step. Internal if the log is full.
struct LogRequest {
  LogEntry entry;
};

// REQUIRES RestoreRequest with the base of the log that RecoverRequest found, in that log's term.
// Completes with the next entries, in order, or with none at the end of the log. Later entries are
// appended; cuts that begin before the reading ends become durable after the first appended entry.
struct ReadLogRequest {};

using ChunkRequest = std::variant<ReadRequest, ReadStateRequest, WriteStateRequest,
                                  InitializeRequest, ReduceRequest, UpdateRequest, MeasureRequest>;
using DurableRequest =
    std::variant<CutRequest, QuiesceRequest, RecoverRequest, RestoreRequest, PromiseRequest,
                 ScrubRequest, StartLogRequest, LogRequest, ReadLogRequest>;
using Request = std::variant<ChunkRequest, DurableRequest>;

// Calls `visitor` with the struct that `request` holds, and returns what it returns.
template <class Visitor>
auto VisitRequest(const Visitor& visitor, const Request& request) {
  return std::visit([&](const auto& group) { return std::visit(visitor, group); }, request);
}

// Returns the request as an R; null if it is of another kind.
template <class R>
const R* RequestAs(const Request& request) {
  const auto as_r = [](const auto& r) -> const R* {
    if constexpr (std::is_same_v<decltype(r), const R&>) return &r;
    return nullptr;
  };
  return VisitRequest(as_r, request);
}

}  // namespace eps

#endif  // EPS_STORAGE_REQUESTS_H_
