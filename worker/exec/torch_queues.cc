#include <array>
#include <chrono>
#include <thread>

#include "ATen/ops/empty.h"
#include "c10/core/Event.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "worker/exec/device_queues.h"

namespace eps {
namespace {

// The pause between two polls of an event: short compared with any work that is waited for. Unlike
// LibTorch's own waiting, it leaves the core to the threads that decode and encode.
constexpr std::chrono::microseconds kPollInterval{20};

// An event of LibTorch's streams, waited for by polling.
class TorchEvent final : public DeviceEvent {
 public:
  explicit TorchEvent(const c10::Stream& stream) : event_(stream.device_type()) {
    event_.record(stream);
  }
  bool done() const override { return event_.query(); }
  bool WaitUntil(std::chrono::steady_clock::time_point deadline) const override {
    while (!event_.query()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kPollInterval);
    }
    return true;
  }
  void BlockStream(const c10::Stream& stream) const { event_.block(stream); }

 private:
  c10::Event event_;
};

// LibTorch's streams as queues.
class TorchQueues final : public DeviceQueues {
 public:
  explicit TorchQueues(c10::Device device)
      : device_(device),
        guard_(device.type()),
        streams_{guard_.getStream(device), guard_.getStreamFromGlobalPool(device),
                 guard_.getStreamFromGlobalPool(device)} {}

  at::Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) override {
    const c10::StreamGuard on_stream(StreamOf(queue));
    return at::empty(shape, at::TensorOptions().device(device_).dtype(type));
  }

  void KeepFor(DeviceQueue user, const at::Tensor& tensor) override {
    guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), StreamOf(user));
  }

  at::Tensor NewPinned(at::IntArrayRef shape, at::ScalarType type) override {
    return at::empty(shape, at::TensorOptions().dtype(type).pinned_memory(true));
  }

  void Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) override {
    const c10::StreamGuard on_stream(StreamOf(queue));
    to.copy_(from, /*non_blocking=*/true);
  }

  DeviceEventPtr Record(DeviceQueue queue) override {
    return std::make_shared<TorchEvent>(StreamOf(queue));
  }

  void Await(DeviceQueue queue, const DeviceEventPtr& event) override {
    static_cast<const TorchEvent&>(*event).BlockStream(StreamOf(queue));
  }

 private:
  const c10::Stream& StreamOf(DeviceQueue queue) const {
    return streams_[static_cast<size_t>(queue)];
  }

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const std::array<c10::Stream, 3> streams_;  // by DeviceQueue
};

}  // namespace

std::unique_ptr<DeviceQueues> NewTorchQueues(c10::Device device) {
  return std::make_unique<TorchQueues>(device);
}

}  // namespace eps
