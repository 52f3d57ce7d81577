#ifndef EPS_WORKER_EXEC_TORCH_HOST_STAGE_H_
#define EPS_WORKER_EXEC_TORCH_HOST_STAGE_H_

// A stage's arrays in host memory, as tensors of LibTorch. Only worker/exec includes this header.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/job/job_spec.h"
#include "base/memory_account.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Releases a charge that its creator has made. `account` may be null.
class Charge {
 public:
  Charge(MemoryAccount* account, MemoryKind kind, uint64_t bytes)
      : account_(account), kind_(kind), bytes_(bytes) {}
  ~Charge() {
    if (account_ != nullptr) account_->Release(kind_, bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  MemoryAccount* const account_;
  const MemoryKind kind_;
  const uint64_t bytes_;
};

// The places of a stage's arrays in one block of memory, each at an aligned offset: first the
// tensors, then the second copies.
class StageLayout {
 public:
  // `backward` adds second copies. `type` is that of all elements.
  StageLayout(const JobSpec& spec, const StageSpec& stage, bool backward,
              at::ScalarType type = at::kFloat);

  at::ScalarType type() const { return type_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t offset(size_t use) const { return offsets_[use]; }
  bool has_second_copy(size_t use) const { return second_offsets_[use] != 0; }
  uint64_t second_offset(size_t use) const { return second_offsets_[use]; }
  size_t uses() const { return shapes_.size(); }
  const std::vector<int64_t>& shape(size_t use) const { return shapes_[use]; }

 private:
  at::ScalarType type_;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> second_offsets_;  // 0 if there is none
  std::vector<std::vector<int64_t>> shapes_;
  uint64_t bytes_ = 0;
};

// A HostStage in one block.
class TorchHostStage final : public HostStage {
 public:
  // Returns the stage `name` in memory, pinned for a device that copies from and to it. Returns
  // ResourceExhausted with its bytes if there is no such memory, and Internal if LibTorch fails.
  static absl::StatusOr<std::unique_ptr<HostStage>> New(const std::string& name, StageLayout layout,
                                                        bool pinned, MemoryAccount* account);
  // Throws what LibTorch throws; call New.
  TorchHostStage(StageLayout layout, bool pinned, MemoryAccount* account);

  float* tensor(size_t use) override {
    return reinterpret_cast<float*>(data_ + layout_.offset(use));
  }
  float* second_copy(size_t use) override {
    if (!layout_.has_second_copy(use)) return nullptr;
    return reinterpret_cast<float*>(data_ + layout_.second_offset(use));
  }
  uint64_t bytes() const override { return layout_.bytes(); }

  const StageLayout& layout() const { return layout_; }
  // Returns the whole block as bytes, without a copy.
  const at::Tensor& all() const { return all_; }

 private:
  const StageLayout layout_;
  Buffer buffer_;                   // unless pinned
  std::unique_ptr<Charge> charge_;  // if pinned
  at::Tensor all_;
  uint8_t* data_ = nullptr;
};

// Returns the bytes of the largest stage in memory, with its second copies.
uint64_t LargestStage(const JobSpec& spec, at::ScalarType type = at::kFloat);

// Returns tensors of the stage's shapes, by use, without values: LibTorch reports every use of one.
std::vector<at::Tensor> TensorsWithoutValues(const StageLayout& layout);

// Return the tensor of one use, or its second copy, within `bytes`, a stage in `layout`.
at::Tensor TensorIn(const at::Tensor& bytes, const StageLayout& layout, size_t use);
at::Tensor SecondCopyIn(const at::Tensor& bytes, const StageLayout& layout, size_t use);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_HOST_STAGE_H_
