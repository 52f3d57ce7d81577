#ifndef EPS_WORKER_EXEC_DEVICE_COPIES_H_
#define EPS_WORKER_EXEC_DEVICE_COPIES_H_

// What moves between host and device while the device computes, and in which order: the weights of
// a stage into one of two buffers, activations to the stash and back, gradients to the host. The
// device is never waited for as a whole. The program runs ahead of it by a bounded amount of work,
// so that neither device memory nor pinned memory grows with depth or the number of micro-batches.

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

// Waits for `event`, at most a few minutes: longer than any work of a device that is alive. Throws
// c10::Error then.
void WaitFor(const DeviceEvent& event);

// Used by one thread. Throws what LibTorch throws. Outlives what it hands out.
class DeviceCopies {
 public:
  // Each buffer holds `stage_bytes`, the most that a stage needs; made when first needed.
  DeviceCopies(std::unique_ptr<DeviceQueues> queues, uint64_t stage_bytes);
  // Waits for all that was enqueued.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // A stage's bytes in a buffer on the device. Dropping it frees the buffer for a later stage,
  // behind what is then enqueued for computing.
  class LoadedStage;
  // Copies a stage while the one before computes. `pinned` holds bytes and stays as it is until
  // `host` is dropped, which happens after the copy. Waits until what computed on the buffer before
  // is done: the stage before the one that still computes, so no more than two are under way as
  // long as the caller drops one before it loads the next; otherwise there are more buffers.
  std::shared_ptr<const LoadedStage> LoadStage(const at::Tensor& pinned,
                                               std::shared_ptr<void> host);

  // A tensor on its way to pinned memory, or there.
  struct Stashed {
    at::Tensor host;
    DeviceEventPtr copied;
  };
  Stashed CopyToStash(const at::Tensor& on_device);
  at::Tensor CopyFromStash(const Stashed& stashed);

  // Enqueues copies of tensors of the device (first), which may be dropped then, to pinned memory
  // (second), which stays until the event that is returned.
  DeviceEventPtr CopyToHost(const std::vector<std::pair<at::Tensor, at::Tensor>>& copies);

  // To be called when the work of a micro-batch in a stage is enqueued. Waits until that of the
  // second one before is done, and what was then on its way to the host is there.
  void EndOfMicroBatch();

  DeviceQueues& queues() { return *queues_; }

 private:
  struct Buffer {
    at::Tensor memory;
    DeviceEventPtr copied;       // the weights are there
    DeviceEventPtr read;         // what computed on them is done
    std::shared_ptr<void> host;  // where they come from, until `copied` is seen done
    bool in_use = false;
  };

  // A buffer that no stage uses: the one that was used least recently, or a new one.
  Buffer* FreeBuffer();
  void Release(Buffer* buffer);
  // Drops pinned memory that the device has read.
  void ReleaseHostMemory();

  const std::unique_ptr<DeviceQueues> queues_;
  const int64_t stage_bytes_;
  std::list<Buffer> buffers_;  // in the order of their release
  std::deque<std::array<DeviceEventPtr, 2>> micro_batches_;
};

class DeviceCopies::LoadedStage {
 public:
  LoadedStage(DeviceCopies* owner, Buffer* buffer, at::Tensor bytes)
      : bytes(std::move(bytes)), owner_(owner), buffer_(buffer) {}
  ~LoadedStage() { owner_->Release(buffer_); }
  LoadedStage(const LoadedStage&) = delete;
  LoadedStage& operator=(const LoadedStage&) = delete;

  const at::Tensor bytes;  // as `pinned`, ready for what is enqueued for computing

 private:
  DeviceCopies* const owner_;
  Buffer* const buffer_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_DEVICE_COPIES_H_
