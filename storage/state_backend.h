#ifndef EPS_STORAGE_STATE_BACKEND_H_
#define EPS_STORAGE_STATE_BACKEND_H_

// The interface to a shard's master weights and optimizer state. All work on tensor bytes (reduce,
// update, encode) happens below this interface, so that a storage device can do it.

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "optimizer/update_request.h"
#include "storage/cuts/cut.h"
#include "storage/requests.h"

namespace eps {

// The progress that one ScrubRequest made.
struct ScrubResult {
  uint64_t bytes = 0;      // read; 0 if no cut is kept
  bool ends_pass = false;  // every byte of every kept cut was read since the previous pass
  // DataLoss with file, offset and chunk if a kept cut is damaged here and the next cut heals it.
  absl::Status damage;
};

// The value that an operation completes with. Cheap to copy.
using BackendValue =
    std::variant<absl::monostate, Bytes, UpdateResult, std::shared_ptr<const RecoveredState>,
                 std::shared_ptr<const CutContent>, ScrubResult,
                 std::shared_ptr<const std::vector<LogEntry>>, MeasureResult>;

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
    // Whether reduced gradients wait for their update outside of memory.
    bool stores_gradients = false;
    // Charged as kState for weights and optimizer state, from creation to destruction.
    uint64_t state_bytes = 0;
  };

  virtual ~StateBackend() = default;
  virtual Caps caps() const = 0;

  // Begins an operation. Its struct in requests.h says what it does and what it completes with.
  virtual void Submit(OpId op, Request request) = 0;
  // Call once every shard has this cut. Forgets older cuts, so that slots that only they need can
  // be overwritten. Does nothing if this shard has no such cut. Completes nothing. REQUIRES
  // caps().durable; otherwise aborts the process.
  virtual void Recycle(CutId oldest_kept) = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_STATE_BACKEND_H_
