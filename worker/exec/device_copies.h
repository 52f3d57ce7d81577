#ifndef EPS_WORKER_EXEC_DEVICE_COPIES_H_
#define EPS_WORKER_EXEC_DEVICE_COPIES_H_

// Copies between host and device while the device computes, and their order: the weights of a stage
// into one of two buffers, activations to the stash and back, gradients to the host. Nothing waits
// for the whole device. The program runs ahead of the device by a bounded amount of work, so that
// neither device memory nor pinned memory grows with depth or the number of micro-batches.

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/exec/device_queues.h"

namespace eps {

// Waits for `event`. Throws c10::Error after a few minutes, which no work of a healthy device
// takes.
void WaitFor(const DeviceEvent& event);

// Orders the copies. Use from one thread. Throws what LibTorch throws. Must outlive what it
// returns.
class DeviceCopies {
 public:
  // Each buffer holds `stage_bytes`, the size of the largest stage, and is allocated on first use.
  DeviceCopies(std::unique_ptr<DeviceQueues> queues, uint64_t stage_bytes);
  // Waits for all enqueued work.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // A stage's bytes in a buffer on the device. Destroying it frees the buffer for a later stage,
  // after the compute work enqueued by then.
  class LoadedStage;
  // Copies a stage while the previous one computes. `pinned` holds its bytes and must not change
  // until `host` is dropped, which happens after the copy. Waits for the compute work that last
  // used the buffer. If the caller drops one stage before it loads the next, that work belongs to
  // the stage before the one that still computes, and two buffers suffice; otherwise there are
  // more.
  std::shared_ptr<const LoadedStage> LoadStage(const at::Tensor& pinned,
                                               std::shared_ptr<void> host);

  // A tensor that is being copied to pinned memory, or has been.
  struct Stashed {
    at::Tensor host;
    DeviceEventPtr copied;
  };
  Stashed CopyToStash(const at::Tensor& on_device);
  at::Tensor CopyFromStash(const Stashed& stashed);

  // Enqueues copies from tensors of the device (first), which may be destroyed at once, to pinned
  // memory (second), which must stay until the returned event.
  DeviceEventPtr CopyToHost(const std::vector<std::pair<at::Tensor, at::Tensor>>& copies);

  // Call this after enqueuing the work of a micro-batch in a stage. Waits until the work of the
  // micro-batch two before it, and its copies to the host, are done.
  void EndOfMicroBatch();

  DeviceQueues& queues() { return *queues_; }

 private:
  // Device memory for one stage.
  struct Buffer {
    at::Tensor memory;
    DeviceEventPtr copied;       // the weights have arrived
    DeviceEventPtr read;         // the compute work that read them is done
    std::shared_ptr<void> host;  // their source; dropped once `copied` is done
    bool in_use = false;
  };

  // Returns a buffer that no stage uses: the least recently used one, or a new one.
  Buffer* FreeBuffer();
  void Release(Buffer* buffer);
  // Drops pinned memory that the device has finished reading.
  void ReleaseHostMemory();

  const std::unique_ptr<DeviceQueues> queues_;
  const int64_t stage_bytes_;
  std::list<Buffer> buffers_;  // in the order of their release
  std::deque<std::array<DeviceEventPtr, 2>> micro_batches_;
};

// Owned by the caller; returns its buffer when destroyed.
class DeviceCopies::LoadedStage {
 public:
  LoadedStage(DeviceCopies* owner, Buffer* buffer, at::Tensor bytes)
      : bytes(std::move(bytes)), owner_(owner), buffer_(buffer) {}
  ~LoadedStage() { owner_->Release(buffer_); }
  LoadedStage(const LoadedStage&) = delete;
  LoadedStage& operator=(const LoadedStage&) = delete;

  const at::Tensor bytes;  // a copy of `pinned`; compute work enqueued from now on may read it

 private:
  DeviceCopies* const owner_;
  Buffer* const buffer_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_DEVICE_COPIES_H_
