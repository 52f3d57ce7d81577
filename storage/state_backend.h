#ifndef EPS_STORAGE_STATE_BACKEND_H_
#define EPS_STORAGE_STATE_BACKEND_H_

// Where a shard's master weights and optimizer state live. All work on tensor bytes (reduce,
// update, encode) lies behind it, so that a computational storage device can do it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/executor.h"
#include "base/ids.h"
#include "compression/codec.h"
#include "optimizer/update_rule.h"
#include "base/job/chunk_map.h"
#include "base/job/reduction_tree.h"
#include "storage/cuts/cut.h"

namespace eps {

// One counted contribution: parts [parts.first, parts.first + parts.count) of one use.
struct UpdateInput {
  uint32_t use = 0;  // index into Chunk::uses
  TreeRange parts;
  std::shared_ptr<const EncodedChunk> data;
};

struct UpdateRequest {
  ChunkId chunk;
  Version from;
  Version to;  // from + 1
  // All contributions, complete: for every use, ranges that are nodes of the tree over `parts` and
  // cover it. Any order; reduced along the tree over parts, then left to right over uses. Anything
  // else is refused with InvalidArgument.
  std::vector<UpdateInput> inputs;
  // What Stats gave back for these inputs; if set, `inputs` is empty.
  std::shared_ptr<const EncodedChunk> reduced;
  uint32_t parts = 1;
  StepScalars step;
  // Scale of the gradient in UpdateResult::sum_squares: 2^k / tokens, without the clip factor that
  // StepScalars::grad_scale contains.
  float norm_scale = 1;
  // How the chunk's weights at `to` are to be encoded while they are in cache, for those who fetch
  // them next; usually empty, at most one for each axis. No codec that uses_residual. Update only.
  struct Encode {
    const Codec* codec = nullptr;
    Axis axis = Axis::kRow;
  };
  std::vector<Encode> encode;
};

struct UpdateResult {
  double sum_squares = 0;  // of the chunk's reduced gradient times norm_scale, canonical order
  std::shared_ptr<const EncodedChunk> reduced;  // of Stats: the sum of the inputs
  // Of Update: for each of UpdateRequest::encode the bytes that Read(to, codec, axis) would give,
  // charged like those.
  std::vector<Bytes> encoded;
};

struct ScrubResult {
  uint64_t bytes = 0;      // that were read; 0: no cut is kept
  bool ends_pass = false;  // every byte of every kept cut was read since the last one
};

// Cheap to copy.
using BackendValue =
    std::variant<absl::monostate, Bytes, UpdateResult, std::shared_ptr<const RecoveredState>,
                 std::shared_ptr<const CutContent>, ScrubResult,
                 std::shared_ptr<const std::vector<LogEntry>>>;

// What became of an operation. `status` not OK: nothing was changed.
struct BackendDone {
  OpId op;
  absl::Status status;
  BackendValue value;
  double seconds = 0;  // that the work took, without waiting; of no influence on any bit
};

// One per (shard, job). Calls come from one sequence, never block, and take effect in call order
// per chunk; each op completes exactly once by `done` on any thread. The backend owns the state's
// memory, charged to the account given at creation, and outlives its operations.
class StateBackend {
 public:
  struct Caps {
    int versions = 1;  // versions of a chunk that can be read at a time
    bool durable = false;
    // Steps that may lie between two cuts, at most, because what counted since is logged; 0: it is
    // not.
    uint64_t log_steps = 0;
  };

  virtual ~StateBackend() = default;
  virtual Caps caps() const = 0;

  // Encodes the weights at `version`; completes with Bytes that are stable however long they are
  // held. FailedPrecondition with both versions if the chunk is at another one.
  virtual void Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) = 0;
  // Completes with weights, then each state field, FP32, element order (Segment::offset).
  virtual void ReadState(OpId op, ChunkId chunk, Version version) = 0;
  // The inverse: sets content and version of the chunk. InvalidArgument for a wrong size.
  virtual void WriteState(OpId op, ChunkId chunk, Version version, Bytes state) = 0;
  // Sets the chunk to the spec's initial values and zero state, at Version(0).
  virtual void Initialize(OpId op, ChunkId chunk) = 0;
  // Decode + reduce, without an update: completes with UpdateResult, whose `reduced` (FP32, or the
  // input itself if there is one) replaces the inputs in a later Update. For sealed mode, which
  // needs the norm of the whole gradient first. Reads no state and changes none.
  virtual void Stats(OpId op, UpdateRequest request) = 0;
  // Decode + reduce + update + encode in one pass over the chunk; completes with UpdateResult.
  virtual void Update(OpId op, UpdateRequest request) = 0;

  // ---- Durability, where caps().durable; elsewhere a call ends the process. An I/O error in any
  // of them, or in an update, completes with DataLoss (a checksum, with file and offset) or
  // Internal (the device, with file, offset and errno): the process has to end, nothing is retried.

  // Makes the state durable that the calls before this one leave; all of them are in it and none of
  // those after it. Completes when data, and then one record, are synced. Cuts complete in order.
  // FailedPrecondition if a chunk is not at the border's version. Later updates may wait until the
  // cut has captured their chunk, and with two slots until Recycle has freed the one they need.
  virtual void Cut(OpId op, CutRequest cut);
  // Every shard has this cut: older ones are forgotten, and what only they need may be written
  // over. Does nothing if this shard has no such cut.
  virtual void Recycle(CutId oldest_kept);
  // Completes when nothing issued earlier can still reach memory or disk. Updates and cuts that
  // wait (see Cut) complete with Cancelled first.
  virtual void Quiesce(OpId op);
  // Completes with RecoveredState. Reads what describes the cuts, not the tensors.
  virtual void Recover(OpId op);
  // REQUIRES Quiesce, or that nothing was issued. Durably: {term, base} is recorded and cuts that
  // are younger than `base` are dead. Then the shard's state is that of `base`. Completes with
  // CutContent. NotFound if the shard lacks the cut. Without a base all cuts are dead, and the
  // shard has no state: what they held may be written over.
  virtual void Restore(OpId op, std::optional<CutId> base, Term term);
  // Durable when it completes: no term below `term` is served again. FailedPrecondition names the
  // term if a later one was promised.
  virtual void Promise(OpId op, Term term);
  // Reads and checks one more chunk of the kept cuts, or a piece of their residuals, all of them in
  // turn, so that damage is found while there may be something to go back to. Completes with
  // ScrubResult. Nothing waits for it
  // but for one staging buffer. One at a time.
  virtual void Scrub(OpId op);

  // ---- The contribution log, where caps().log_steps > 0.

  // Everything logged so far is forgotten; durable when it completes. `log.base` is the cut that
  // the shard's state is of. Entries may be logged behind it at once. FailedPrecondition if another
  // term than log.id.term is promised.
  virtual void StartLog(OpId op, const FoundLog& log);
  // Completes when the entry is durable, and so are all that were logged before it. A cut becomes
  // durable after all that was logged before it, and frees the room of entries up to its step;
  // Internal if there is none left.
  virtual void Log(OpId op, LogEntry entry);
  // REQUIRES Restore of the base of the log that Recover found, in its term. Completes with the
  // entries that come next, in order; with none at the end. What is logged then comes behind them;
  // cuts that were begun meanwhile become durable after the first of that.
  virtual void ReadLog(OpId op);
};

// Called for each completed operation, on any thread, without locks held.
using BackendDoneFn = std::function<void(BackendDone)>;

// State in DRAM, pre-faulted, 12 bytes per parameter for AdamW. Reserves everything now, or
// ResourceExhausted with the bytes wanted, in use, and the limit, and the key to change. `spec`,
// `chunks`, `executor` and `account` must outlive the backend; `owned` lists this shard's chunks.
// Operations of one chunk run one after the other, those of different chunks side by side. The
// destructor waits for the operations that were begun; it may not run on the executor's threads.
absl::StatusOr<std::unique_ptr<StateBackend>> NewDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done);

}  // namespace eps

#endif  // EPS_STORAGE_STATE_BACKEND_H_
