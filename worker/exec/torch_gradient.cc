#include "worker/exec/torch_gradient.h"

#include <utility>

#include "ATen/core/Tensor.h"
#include "c10/core/CPUAllocator.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/torch_host_stage.h"

namespace eps {
namespace {

// Tensors that were computed in host memory.
class HostTensors final : public HostStage {
 public:
  HostTensors(StageTensors tensors, uint64_t bytes, MemoryAccount* account)
      : tensors_(std::move(tensors)), bytes_(bytes), charge_(account, MemoryKind::kStage, bytes) {
    if (account != nullptr) account->Charge(MemoryKind::kStage, bytes);
  }
  float* tensor(size_t use) override {
    return tensors_[use].defined() ? tensors_[use].mutable_data_ptr<float>() : nullptr;
  }
  float* second_copy(size_t /*use*/) override { return nullptr; }
  uint64_t bytes() const override { return bytes_; }

 private:
  const StageTensors tensors_;
  const uint64_t bytes_;
  const Charge charge_;
};

}  // namespace

std::unique_ptr<HostStage> MoveTensorsToHost(StageTensors tensors, MemoryAccount* account) {
  uint64_t bytes = 0;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    tensor = tensor.contiguous();  // every program gives contiguous ones
    const c10::Storage& storage = tensor.storage();
    TORCH_CHECK(storage.data_ptr().get_deleter() == c10::GetCPUAllocator()->raw_deleter(),
                "a gradient is in memory that is not counted");
    if (storage.nbytes() > 0) bytes += TensorMemory::Get().Exclude(storage.mutable_data());
  }
  return std::make_unique<HostTensors>(std::move(tensors), bytes, account);
}

at::Tensor Flushed(const at::Tensor& x) {
  constexpr float kSmallestNormal = 1.17549435e-38f;
  return x.mul(0.0f).where(x.abs().lt(kSmallestNormal), x);
}

}  // namespace eps
