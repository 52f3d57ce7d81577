#ifndef EPS_WORKER_EXEC_QUEUES_DEVICE_QUEUES_H_
#define EPS_WORKER_EXEC_QUEUES_DEVICE_QUEUES_H_

// The interface of a device that works asynchronously: queues that run concurrently, and events
// that order them. It separates the rules of worker/exec/queues/device_copies.h and device_slots.h
// from the device: LibTorch's streams on CUDA, simulations in the tests. A CPU has no queues and
// does without it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "c10/core/Device.h"

namespace eps {

// Each queue uses one engine of the device.
enum class DeviceQueue {
  kCompute,    // computes stages
  kWeights,    // copies weights to the device
  kCodec,      // decodes weights and encodes gradients
  kGradients,  // copies gradients to the host
  kStashOut,   // copies activations and losses to the host
  kStashIn,    // copies activations to the device
};
inline constexpr size_t kDeviceQueues = 6;

// A point in a queue. Thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Returns whether everything that was enqueued in that queue before the event is done.
  virtual bool done() const = 0;
  // Waits until done() is true; returns false if it is not by `deadline`.
  virtual bool WaitUntil(std::chrono::steady_clock::time_point deadline) const = 0;
  // Returns when the queue reached this point, by CLOCK_MONOTONIC. REQUIRES done(), and an event of
  // RecordTime.
  virtual int64_t time_ns() const { return 0; }
};
using DeviceEventPtr = std::shared_ptr<const DeviceEvent>;

// The rows of one segment of a chunk (base/job/layout/chunk_map.h) in a dense codec.
struct SegmentCode {
  uint32_t codec = 0;  // CodecId
  uint32_t rows = 0;
  uint32_t cols = 0;
  bool column = false;    // the axis along which blocks run
  bool truncate = false;  // encodes by that variant of the codec
};

// The queues of a device. Calls enqueue and return. Use each queue from one thread at a time;
// throws what LibTorch throws.
class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;

  // Returns device memory with arbitrary content. `queue` may use it, and another queue after an
  // Await. Once the tensor is destroyed, the memory may serve another tensor of `queue` at once.
  virtual at::Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) = 0;
  // Delays that until the work enqueued by then in the other queue `user` is done, too.
  virtual void KeepFor(DeviceQueue user, const at::Tensor& tensor) = 0;
  // Returns bytes of host memory from and to which the device copies. Destroy them after the copies
  // are done. Slow: the device registers them. Any thread.
  virtual at::Tensor NewPinned(uint64_t bytes) = 0;

  // Returns whether Copy takes host memory that is not from NewPinned: the device has registered
  // it. Any thread.
  virtual bool Reaches(absl::Span<const uint8_t> /*memory*/) { return false; }

  // Both tensors have one shape and type, are contiguous, and one is in host memory that the device
  // reaches. Does not keep them alive.
  virtual void Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) = 0;

  // Returns whether this device has Decode, Encode and Checksum.
  virtual bool has_codecs() const = 0;
  // Decodes a segment from the bytes `in` to `out`, which is FP32, or BF16 to round to. Both are
  // contiguous on the device. Does not keep them alive.
  virtual void Decode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
                      const at::Tensor& out) = 0;

  // The inverse.
  virtual void Encode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
                      const at::Tensor& out) = 0;

  // Writes the CRC32C of each piece of `in` to `out`, int32, as eps_cuda_crc32c does
  // (worker/exec/cuda/kernels.h). Does not keep them alive. REQUIRES has_codecs().
  virtual void Checksum(DeviceQueue queue, const at::Tensor& in, const at::Tensor& out) = 0;

  virtual DeviceEventPtr Record(DeviceQueue queue) = 0;
  // As Record, with a time. Slower; for traces.
  virtual DeviceEventPtr RecordTime(DeviceQueue queue) = 0;
  // Makes work that is enqueued in `queue` from now on wait for the event.
  virtual void Await(DeviceQueue queue, const DeviceEventPtr& event) = 0;
};

// Waits for `event`. Throws c10::Error after a few minutes, which no work of a healthy device
// takes.
void WaitFor(const DeviceEvent& event);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_DEVICE_QUEUES_H_
