#ifndef EPS_STORAGE_TIER_H_
#define EPS_STORAGE_TIER_H_

// A tier holds the tensor bytes of a backend: in memory, or in the slot files on a disk.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/executor.h"
#include "base/ids.h"
#include "optimizer/chunk_compute.h"
#include "optimizer/reduced_gradient.h"
#include "optimizer/update_request.h"
#include "storage/cuts/extents/extents.h"
#include "storage/cuts/slot_table.h"
#include "storage/state_backend.h"

namespace eps {

// One operation of one chunk. The owner of the chunk's queue fills in the last block of members
// when the operation begins; from then until completion, one task at a time uses the operation.
struct ChunkOp {
  uint32_t index = 0;         // the chunk's index within the shard
  Lane lane = Lane::kUpdate;  // where it runs
  // Returns OK if the operation is legal at the chunk's version, which is nullopt if the chunk has
  // no content. Null if the operation is always legal.
  std::function<absl::Status(std::optional<Version>)> check;
  std::optional<Extents::Part> reads;  // the part of the state that it reads, if any
  bool writes = false;                 // whether it overwrites the whole state
  Version to;                          // the version that it writes
  // Computes over the chunk's arrays and owns the inputs. An error leaves the arrays unchanged.
  std::function<absl::StatusOr<BackendValue>(const ChunkArrays&)> work;
  // If not empty, the whole state that it writes: all arrays, without gaps. A tier may store these
  // bytes instead of calling `work`, which copies them and returns an empty value.
  Bytes state;
  bool reduces = false;  // whether it makes a reduced gradient
  // The reduced gradient that it updates with, if any.
  std::shared_ptr<const ReducedGradient> gradient;
  // The update that it makes, if any; `work` owns it. A tier may make it instead of calling `work`.
  const UpdateRequest* update = nullptr;
  // The update that it measures for, if any; `work` owns it. A tier may measure instead of calling
  // `work`.
  const UpdateRequest* measure = nullptr;
  // The weights that it encodes, if any; `work` owns it. A tier may do so instead of calling
  // `work`.
  const ReadRequest* read = nullptr;

  SlotTable::Content from;  // the source of the state, if the tier is in slots
  uint32_t target = 0;      // the slot to write, if the tier is in slots
  Term term;                // the term to write with the state

  // Destroys and uncharges the inputs. Call it before the outcome is reported.
  void DropInputs() {
    check = nullptr;
    update = nullptr;
    measure = nullptr;
    read = nullptr;
    work = nullptr;
    state = Bytes();
    gradient = nullptr;
  }
};

// The outcome of a ChunkOp.
struct ChunkResult {
  absl::StatusOr<BackendValue> outcome;
  std::optional<SlotTable::Content> written;  // set by a tier in slots
  double seconds = 0;                         // time spent working, not waiting for the disk
};

// Holds the tensor bytes of one shard. Thread-safe. Callbacks run on the executor's threads,
// without locks held, unless noted otherwise. A tier reports an I/O error or damage to the
// backend's InFlight before it calls back. Make one call at a time per chunk; only an operation
// that writes nothing may run while the chunk is captured. Indices are those of the extents'
// layout.
class Tier {
 public:
  using RunDone = std::function<void(ChunkResult)>;
  using SyncDone = std::function<void(absl::Status)>;
  using CheckDone = std::function<void(absl::StatusOr<ExtentFooter>)>;
  // A copy of a chunk into a slot, for a cut.
  struct Copy {
    uint32_t index = 0;
    uint32_t slot = 0;
    Version version;
    Term term;
  };
  using CopyDone = std::function<void(absl::StatusOr<SlotTable::Content>)>;

  virtual ~Tier() = default;

  // Returns true if the chunk lives in the slot files: a write then needs a free slot, and a
  // capture costs nothing. Returns false if a cut has to copy it to a slot. Constant.
  virtual bool in_slots(uint32_t index) const = 0;
  // Returns the memory that holds the state. 0 if the slot files hold it.
  virtual uint64_t state_bytes() const = 0;
  // Runs an operation whose check has passed. Keep `op` valid until `done`. Drops the inputs
  // before it calls `done`.
  virtual void Run(ChunkOp* op, RunDone done) = 0;
  // Copies the chunk's current state into a slot. Calls `copied` as soon as the chunk may change
  // again, and `done` once the copy has been written. REQUIRES !in_slots(copy.index).
  virtual void Capture(const Copy& copy, std::function<void()> copied, CopyDone done) = 0;
  // Makes the completed writes to a slot survive a power cut. `done` may run on the caller's stack.
  virtual void Sync(uint32_t slot, SyncDone done) = 0;
  // Reads and checks a part of a chunk in a slot. DataLoss names file and offset.
  virtual void Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) = 0;
  // Checks all parts as Check does, then makes the content of the slot the chunk's state.
  virtual void Adopt(uint32_t index, uint32_t slot, CheckDone done) = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_TIER_H_
