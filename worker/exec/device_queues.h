#ifndef EPS_WORKER_EXEC_DEVICE_QUEUES_H_
#define EPS_WORKER_EXEC_DEVICE_QUEUES_H_

// The interface of a device that works asynchronously: queues that run concurrently, and events
// that order them. It separates the rules of worker/exec/device_copies.h from the device:
// LibTorch's streams on CUDA, a simulation in the tests. A CPU has no queues and does without it.

#include <chrono>
#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"

namespace eps {

enum class DeviceQueue { kCompute, kToDevice, kToHost };

// A point in a queue. Thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Returns whether everything that was enqueued in that queue before the event is done.
  virtual bool done() const = 0;
  // Waits until done() is true; returns false if it is not by `deadline`.
  virtual bool WaitUntil(std::chrono::steady_clock::time_point deadline) const = 0;
};
using DeviceEventPtr = std::shared_ptr<const DeviceEvent>;

// The queues of a device. Calls enqueue and return. Use from one thread; throws what LibTorch
// throws.
class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;

  // Returns device memory with arbitrary content. `queue` may use it, and another queue after an
  // Await. Once the tensor is destroyed, the memory may serve another tensor of `queue` at once.
  virtual at::Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) = 0;
  // Delays that until the work enqueued by then in the other queue `user` is done, too.
  virtual void KeepFor(DeviceQueue user, const at::Tensor& tensor) = 0;
  // Returns host memory from and to which the device copies. Once the tensor is destroyed, its
  // memory is reused only after all copies that were enqueued.
  virtual at::Tensor NewPinned(at::IntArrayRef shape, at::ScalarType type) = 0;

  // Both tensors have one shape and type, are contiguous, and one is in pinned memory. Does not
  // keep them alive.
  virtual void Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) = 0;

  virtual DeviceEventPtr Record(DeviceQueue queue) = 0;
  // Makes work that is enqueued in `queue` from now on wait for the event.
  virtual void Await(DeviceQueue queue, const DeviceEventPtr& event) = 0;
};

// Returns the queues of a device as LibTorch's streams; kCompute is its current stream.
std::unique_ptr<DeviceQueues> NewTorchQueues(c10::Device device);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_DEVICE_QUEUES_H_
