#ifndef EPS_STORAGE_STATE_BACKEND_H_
#define EPS_STORAGE_STATE_BACKEND_H_

// The interface to a shard's master weights and optimizer state. All work on tensor bytes (reduce,
// update, encode) happens below this interface, so that a storage device can do it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec.h"
#include "optimizer/update_request.h"
#include "storage/cuts/cut.h"
#include "storage/requests.h"

namespace eps {

// The progress that one Scrub made.
struct ScrubResult {
  uint64_t bytes = 0;      // read; 0 if no cut is kept
  bool ends_pass = false;  // every byte of every kept cut was read since the previous pass
};

// The value that an operation completes with. Cheap to copy.
using BackendValue =
    std::variant<absl::monostate, Bytes, UpdateResult, std::shared_ptr<const RecoveredState>,
                 std::shared_ptr<const CutContent>, ScrubResult,
                 std::shared_ptr<const std::vector<LogEntry>>>;

// The outcome of an operation. If `status` is not OK, nothing was changed.
struct BackendDone {
  OpId op;
  absl::Status status;
  BackendValue value;
  double seconds = 0;  // time spent working, not waiting; for metrics only
};

// Called for each completed operation, on any thread, without locks held.
using BackendDoneFn = std::function<void(BackendDone)>;

// The state of one shard of one job. Make all calls from one sequence; they never block and take
// effect in call order per chunk. Each operation completes exactly once, through a BackendDoneFn,
// on any thread. The backend owns the state's memory, which it charges to the account that it was
// created with, and outlives its operations.
class StateBackend {
 public:
  // The capabilities of a backend; constant.
  struct Caps {
    int versions = 1;  // versions of a chunk that are readable at the same time
    bool durable = false;
    // The most steps between two cuts whose contributions the log can hold. 0 if there is no log.
    uint64_t log_steps = 0;
  };

  virtual ~StateBackend() = default;
  virtual Caps caps() const = 0;

  // Begins an operation. The functions below build its request; a backend that overrides this one
  // function supports them all.
  virtual void Submit(OpId op, Request request);

  // Encodes the weights at `version`. Completes with Bytes, which never change. FailedPrecondition
  // with both versions if the chunk is at another one.
  virtual void Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis);
  // Completes with the weights, then each state field, FP32, in element order (Segment::offset).
  virtual void ReadState(OpId op, ChunkId chunk, Version version);
  // The inverse of ReadState: sets the chunk's content and version. InvalidArgument if the size is
  // wrong.
  virtual void WriteState(OpId op, ChunkId chunk, Version version, Bytes state);
  // Sets the chunk to the spec's initial values and zero state, at Version(0).
  virtual void Initialize(OpId op, ChunkId chunk);
  // Decodes and reduces without an update. Completes with UpdateResult, whose `reduced` (FP32, or
  // the input itself if there is only one) replaces the inputs in a later Update. Sealed mode calls
  // this because it needs the norm of the whole gradient before it updates. Does not access the
  // state.
  virtual void Stats(OpId op, UpdateRequest request);
  // Decodes, reduces, updates and encodes in one pass over the chunk. Completes with UpdateResult.
  virtual void Update(OpId op, UpdateRequest request);

  // ---- Durability. REQUIRES caps().durable; otherwise a call aborts the process. If an I/O error
  // occurs in one of these operations or in an update, the operation completes with DataLoss (bad
  // checksum; names file and offset) or Internal (device error; names file, offset and errno). End
  // the process after such an error: the backend does not retry.

  // Makes durable the state that results from all earlier calls and no later one. Completes after
  // the data and then one record have been synced. Cuts complete in order. FailedPrecondition if a
  // chunk is not at the border's version. Later updates may have to wait until the cut has captured
  // their chunk, and then until Recycle frees the slot that they need.
  virtual void Cut(OpId op, CutRequest cut);
  // Call once every shard has this cut. Forgets older cuts, so that slots that only they need can
  // be overwritten. Does nothing if this shard has no such cut.
  virtual void Recycle(CutId oldest_kept);
  // Cancels waiting updates and cuts (see Cut), then completes once no earlier operation can still
  // reach memory or disk.
  virtual void Quiesce(OpId op);
  // Completes with RecoveredState. Reads the records and footers of the cuts, not the tensors.
  virtual void Recover(OpId op);
  // REQUIRES Quiesce, or that no operation was issued. Durably records {term, base}, which discards
  // all cuts younger than `base`; then loads the state of `base` into the shard. Completes with
  // CutContent. NotFound if the shard lacks the cut. Without a base, discards all cuts and leaves
  // the shard without state, so that all slots can be overwritten.
  virtual void Restore(OpId op, std::optional<CutId> base, Term term);
  // Once this completes, the shard never serves an earlier term again, even after a crash.
  // FailedPrecondition names the later term if one was promised.
  virtual void Promise(OpId op, Term term);
  // Reads and checks the next chunk of the kept cuts, or the next piece of their residuals, so that
  // damage is found while an intact cut may still exist. Completes with ScrubResult. Occupies at
  // most one staging buffer. Call one at a time.
  virtual void Scrub(OpId op);

  // ---- The contribution log. REQUIRES caps().log_steps > 0.

  // Discards everything logged so far; the new, empty log is durable once this completes.
  // `log.base` is the cut whose state the shard has. Log may be called without waiting for
  // completion. FailedPrecondition if a term other than log.id.term is promised.
  virtual void StartLog(OpId op, const FoundLog& log);
  // Completes once this entry and all earlier ones are durable. A cut becomes durable only after
  // all earlier entries, and frees the room of entries up to its step. Internal if the log is full.
  virtual void Log(OpId op, LogEntry entry);
  // REQUIRES Restore of the base of the log that Recover found, in that log's term. Completes with
  // the next entries, in order, or with none at the end of the log. Later entries are appended;
  // cuts that begin before the reading ends become durable after the first appended entry.
  virtual void ReadLog(OpId op);
};

}  // namespace eps

#endif  // EPS_STORAGE_STATE_BACKEND_H_
