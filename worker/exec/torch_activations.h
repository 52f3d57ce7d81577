#ifndef EPS_WORKER_EXEC_TORCH_ACTIVATIONS_H_
#define EPS_WORKER_EXEC_TORCH_ACTIVATIONS_H_

// Activations as tensors of LibTorch, on the device and in the stash, and what they count towards.
// Only worker/exec includes this header.

#include <cstdint>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "base/check.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/torch_host_stage.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Adds bytes to the CPU's device account during its lifetime; negative bytes are subtracted.
class DeviceCount {
 public:
  explicit DeviceCount(int64_t bytes) : bytes_(bytes) { TensorMemory::Get().Adjust(bytes_); }
  ~DeviceCount() { TensorMemory::Get().Adjust(-bytes_); }
  DeviceCount(const DeviceCount&) = delete;
  DeviceCount& operator=(const DeviceCount&) = delete;

 private:
  const int64_t bytes_;
};

// Excludes a stashed tensor from the device's count as long as no activation on the device shares
// its memory: a CPU stashes it without a copy, but counts as if there were one.
class OffDevice {
 public:
  explicit OffDevice(uint64_t bytes) : bytes_(static_cast<int64_t>(bytes)) { Leave(); }
  void Enter() {
    ++on_device_;
    count_ = nullptr;
  }
  void Leave() {
    if (--on_device_ == 0) count_ = std::make_unique<DeviceCount>(-bytes_);
  }

 private:
  const int64_t bytes_;
  int on_device_ = 1;  // number of activations that share the memory
  std::unique_ptr<DeviceCount> count_;
};

// An activation on the device, perhaps in a stash there.
class TorchActivation final : public Activation {
 public:
  explicit TorchActivation(at::Tensor t) : tensor(std::move(t)) {}
  // Holds the result of Forward, with its encoding for the stash.
  TorchActivation(at::Tensor t, at::Tensor encoded)
      : tensor(std::move(t)), encoded_(std::move(encoded)) {}
  ~TorchActivation() override {
    if (const auto stashed = stashed_.lock()) stashed->Leave();
  }
  uint64_t bytes() const override { return tensor.defined() ? tensor.nbytes() : encoded_.nbytes(); }
  // Undefined if the stash does not encode it.
  const at::Tensor& encoded() const { return encoded_; }
  // For a stash that is not on the device.
  void DropEncoded() const { encoded_ = at::Tensor(); }
  // Records that its memory is that of a stashed tensor.
  void ShareWith(const std::shared_ptr<OffDevice>& stashed) const {
    if (stashed == nullptr) return;
    EPS_CHECK(stashed_.expired());
    stashed->Enter();
    stashed_ = stashed;
  }
  at::Tensor tensor;  // undefined in a stash on the device if there is an encoding

 private:
  mutable at::Tensor encoded_;
  mutable std::weak_ptr<OffDevice> stashed_;
};

// The charges of a stashed activation.
struct StashCharge {
  std::unique_ptr<Charge> room;     // within worker.stash_host
  std::unique_ptr<Charge> account;  // of the worker
};

// An activation in host memory; charged to the stash during its lifetime.
class StashedActivation final : public Activation {
 public:
  StashedActivation(at::Tensor t, bool is_encoded, StashCharge c)
      : tensor(std::move(t)),
        encoded(is_encoded),
        off_device(std::make_shared<OffDevice>(tensor.nbytes())),
        charge_(std::move(c)) {}
  StashedActivation(DeviceCopies::Stashed stashed, bool is_encoded, StashCharge c)
      : tensor(std::move(stashed.host)),
        encoded(is_encoded),
        copied(std::move(stashed.copied)),
        charge_(std::move(c)) {}
  uint64_t bytes() const override { return tensor.nbytes(); }
  const at::Tensor tensor;
  const bool encoded;                           // by the stash codec
  const DeviceEventPtr copied;                  // set on a device
  const std::shared_ptr<OffDevice> off_device;  // set on a CPU

 private:
  const StashCharge charge_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_ACTIVATIONS_H_
