#ifndef EPS_WORKER_EXEC_DEVICE_QUEUES_H_
#define EPS_WORKER_EXEC_DEVICE_QUEUES_H_

// What a device that works behind the program's back offers: queues that run side by side, and
// events that order them. The seam between the rules of worker/exec/device_copies.h and a device:
// LibTorch's streams on CUDA, a simulation in the tests. A CPU has no queues and needs none of
// this.

#include <chrono>
#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"

namespace eps {

enum class DeviceQueue { kCompute, kToDevice, kToHost };

// A point in a queue. Any thread may ask.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether everything is done that was enqueued in that queue before the event.
  virtual bool done() const = 0;
  // Waits for that; false if it is not done by `deadline`.
  virtual bool WaitUntil(std::chrono::steady_clock::time_point deadline) const = 0;
};
using DeviceEventPtr = std::shared_ptr<const DeviceEvent>;

// Calls enqueue and return. Used by one thread; throws what LibTorch throws.
class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;

  // Memory of the device, content arbitrary, for `queue`, and for another one from an Await on.
  // When the tensor is dropped, the memory may serve another tensor of `queue` at once.
  virtual at::Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) = 0;
  // Puts that off until what is then enqueued in the other queue `user` is done, too.
  virtual void KeepFor(DeviceQueue user, const at::Tensor& tensor) = 0;
  // Memory of the host that the device copies from and to. When the tensor is dropped, its memory
  // is used again only after all copies that were enqueued.
  virtual at::Tensor NewPinned(at::IntArrayRef shape, at::ScalarType type) = 0;

  // Both of one shape and type, contiguous, one in pinned memory. Keeps neither alive.
  virtual void Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) = 0;

  virtual DeviceEventPtr Record(DeviceQueue queue) = 0;
  // What is enqueued in `queue` from now on waits for the event.
  virtual void Await(DeviceQueue queue, const DeviceEventPtr& event) = 0;
};

// The queues of a device as LibTorch's streams: computing is its current stream.
std::unique_ptr<DeviceQueues> NewTorchQueues(c10::Device device);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_DEVICE_QUEUES_H_
