#ifndef EPS_WORKER_EXEC_QUEUES_DEVICE_COPIES_H_
#define EPS_WORKER_EXEC_QUEUES_DEVICE_COPIES_H_

// Copies between host and device while the device computes, and their order: the weights of stages
// into slots, activations to the stash and back, gradients to the host. Nothing waits for the whole
// device. The program runs ahead of the device by a bounded amount of work, so that neither device
// memory nor pinned memory grows with depth or the number of micro-batches.

#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "worker/exec/queues/device_queues.h"
#include "worker/exec/queues/device_slots.h"
#include "worker/exec/queues/pinned_memory.h"
#include "worker/exec/queues/queue_trace.h"

namespace eps {

// Orders the copies. Use from one thread, except where DeviceSlots says otherwise. Throws what
// LibTorch throws. Must outlive what it returns.
class DeviceCopies {
 public:
  // `account_or_null` is charged with pinned memory of weights.
  DeviceCopies(std::unique_ptr<DeviceQueues> queues, const SlotSizes& sizes,
               MemoryAccount* account_or_null);
  // Waits for all enqueued work.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // A tensor that is being copied to pinned memory, or has been.
  struct Stashed {
    at::Tensor host;
    DeviceEventPtr copied;
  };
  Stashed CopyToStash(const at::Tensor& on_device);
  at::Tensor CopyFromStash(const Stashed& stashed);

  // Enqueues copies of gradients on the device (first), which may be destroyed at once, to pinned
  // memory (second), which must stay until the returned event.
  DeviceEventPtr CopyGradients(const std::vector<std::pair<at::Tensor, at::Tensor>>& copies);

  // Call this after enqueuing the work of a micro-batch in a stage. Waits until the work of the
  // micro-batch two before it, and its copies to the stash, are done.
  void EndOfMicroBatch();

  DeviceSlots& slots() { return slots_; }
  PinnedMemory& stash_memory() { return stash_memory_; }
  QueueTrace* trace() { return &trace_; }
  DeviceQueues& queues() { return *queues_; }
  // Hold it while using the queues kWeights and kCodec.
  Mutex* codec_mutex() { return &codec_mu_; }

 private:
  // Enqueues copies in `queue`, which leads to the host, after the work that is enqueued.
  DeviceEventPtr CopyToHost(DeviceQueue queue, const char* span,
                            const std::vector<std::pair<at::Tensor, at::Tensor>>& copies);

  const std::unique_ptr<DeviceQueues> queues_;
  PinnedMemory stash_memory_;
  Mutex codec_mu_;
  QueueTrace trace_;
  DeviceSlots slots_;
  std::deque<std::array<DeviceEventPtr, 2>> micro_batches_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_DEVICE_COPIES_H_
