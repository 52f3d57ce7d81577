#ifndef EPS_WORKER_EXEC_QUEUES_DEVICE_SLOTS_H_
#define EPS_WORKER_EXEC_QUEUES_DEVICE_SLOTS_H_

// The places of stages' weights on a device, and the order in which they are filled while earlier
// stages compute. A chunk is copied as soon as it is on the host, to the device, where it is
// decoded: from where it arrived, if the device reaches that, or from its own place in pinned
// memory. The host waits for the device only for the pinned memory of the stage that used the place
// before; its copies were done before that stage computed.

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "base/trace/trace_log.h"
#include "c10/core/ScalarType.h"
#include "worker/exec/queues/device_queues.h"
#include "worker/exec/queues/queue_trace.h"
#include "worker/exec/torch_host_stage.h"

namespace eps {

// Bytes of the largest stage.
struct SlotSizes {
  uint64_t decoded = 0;  // as the device computes on it
  uint64_t encoded = 0;  // as it arrives in chunks; 0 if it does not
  bool decodes = false;  // whether the device decodes; otherwise chunks are copied into place
  // Of the decoded elements: FP32, or BF16, to which the device rounds.
  at::ScalarType type = at::kFloat;
};

// Owns the slots. The caller's thread makes and releases them. Throws what LibTorch throws.
class DeviceSlots {
 public:
  class Slot;

  // Borrows everything; `mu` is held while the queues kWeights and kCodec are used, because chunks
  // arrive on any thread. `account_or_null` is charged with pinned memory. Slots are allocated on
  // first use.
  DeviceSlots(DeviceQueues* queues, Mutex* mu, QueueTrace* trace, const SlotSizes& sizes,
              MemoryAccount* account_or_null)
      : queues_(queues), mu_(mu), trace_(trace), sizes_(sizes), account_(account_or_null) {}
  DeviceSlots(const DeviceSlots&) = delete;
  DeviceSlots& operator=(const DeviceSlots&) = delete;

  // Returns a free slot for a stage: the one that was released first, or a new one. Its memory may
  // still be in use by work that is enqueued, for which the device waits.
  std::shared_ptr<Slot> Take(StageId stage);

 private:
  // The memory of one slot.
  struct Memory {
    at::Tensor decoded;                       // on the device
    at::Tensor encoded;                       // on the device
    at::Tensor pinned;                        // undefined until bytes have to lie there
    DeviceEventPtr copied;                    // the last copy from the host is done
    DeviceEventPtr done;                      // the last decoding is done
    std::array<DeviceEventPtr, 2> last_used;  // the work that used the device's memory is done
    std::unique_ptr<Charge> charge;           // of `pinned`
    std::shared_ptr<void> host;               // the source of CopyFrom, until `copied` is done
    bool in_use = false;
  };

  // Bytes that the device reads where they are, until `copied`.
  struct Borrowed {
    DeviceEventPtr copied;
    Bytes bytes;
  };

  void Release(Memory* memory);
  // Gives back what the device has read.
  void DropRead() EPS_REQUIRES(mu_);

  DeviceQueues* const queues_;
  Mutex* const mu_;
  QueueTrace* const trace_;
  const SlotSizes sizes_;
  MemoryAccount* const account_;
  std::list<Memory> memories_;  // in the order of their release
  std::deque<Borrowed> borrowed_ EPS_GUARDED_BY(mu_);
};

// The place of one stage. Its last owner releases it to a later stage, on the thread that calls
// Take, after all calls of Arrive have returned.
class DeviceSlots::Slot {
 public:
  Slot(DeviceSlots* owner, StageId stage, Memory* memory)
      : owner_(owner), place_{0, stage.value() + 1}, memory_(memory) {}
  ~Slot() { owner_->Release(memory_); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // The device's bytes, at least as many as SlotSizes::decoded. Work that is enqueued in kCompute
  // after Ready may read them.
  const at::Tensor& bytes() const { return memory_->decoded; }

  // A segment of a chunk: where it begins among the chunk's bytes, and decoded among bytes().
  struct Piece {
    uint64_t from = 0;
    uint64_t to = 0;
    SegmentCode code;
  };
  // Fills pieces of the slot from a chunk of which `encoded` are the bytes, and `offset` its own
  // place among the stage's encoded bytes. Keeps them until the device has read them, if it reaches
  // them. Any thread, several at once.
  void Arrive(const Bytes& encoded, uint64_t offset, absl::Span<const Piece> pieces);
  // Fills the first bytes of the slot from pinned memory, which must not change until `host` is
  // dropped.
  void CopyFrom(const at::Tensor& pinned, std::shared_ptr<void> host);
  // Call it once, when everything has arrived.
  void Ready();

 private:
  // Returns where the encoded bytes lie that the device does not reach elsewhere.
  const at::Tensor& Pinned() EPS_EXCLUDES(owner_->mu_);
  // Delays what is enqueued until the slot's memory is free.
  void AwaitMemory() EPS_REQUIRES(owner_->mu_);
  // Decodes a chunk that is on the device by then.
  void Decode(const at::Tensor& landed, absl::Span<const Piece> pieces) EPS_REQUIRES(owner_->mu_);
  // Returns the bytes of bytes() that a piece fills.
  at::Tensor RoomOf(const Piece& piece) const;

  DeviceSlots* const owner_;
  const SpanPlace place_;  // in traces
  Memory* const memory_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_DEVICE_SLOTS_H_
