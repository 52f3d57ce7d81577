#include "worker/exec/torch_host_stage.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "c10/util/accumulate.h"
#include "worker/exec/torch_guard.h"
#include "worker/relay/weight_copies.h"

namespace eps {
namespace {

using at::Tensor;

constexpr uint64_t kTensorAlignment = 64;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

std::vector<int64_t> ShapeOf(const TensorSpec& tensor) {
  if (tensor.rank == 1) return {tensor.cols};
  return {tensor.rows, tensor.cols};
}

Tensor View(const Tensor& bytes, uint64_t offset, const StageLayout& layout, size_t use) {
  const std::vector<int64_t>& shape = layout.shape(use);
  const auto element = static_cast<int64_t>(c10::elementSize(layout.type()));
  return bytes.narrow(0, static_cast<int64_t>(offset), c10::multiply_integers(shape) * element)
      .view(layout.type())
      .view(shape);
}

}  // namespace

StageLayout::StageLayout(const JobSpec& spec, const StageSpec& stage, bool backward,
                         at::ScalarType type)
    : type_(type) {
  const uint64_t element = c10::elementSize(type);
  for (const TensorUse& use : stage.uses) {
    const TensorSpec& tensor = spec.tensors[use.tensor.value()];
    shapes_.push_back(ShapeOf(tensor));
    offsets_.push_back(bytes_);
    bytes_ += Aligned(tensor.elements() * element);
  }
  for (const TensorUse& use : stage.uses) {
    second_offsets_.push_back(0);
    if (!backward || !HasSecondCopy(spec, use)) continue;
    second_offsets_.back() = bytes_;
    bytes_ += Aligned(spec.tensors[use.tensor.value()].elements() * element);
  }
}

absl::StatusOr<std::unique_ptr<HostStage>> TorchHostStage::New(const std::string& name,
                                                               StageLayout layout, bool pinned,
                                                               MemoryAccount* account) {
  std::unique_ptr<HostStage> stage;
  const std::string what = absl::StrCat("allocating ", layout.bytes(), " bytes of ",
                                        pinned ? "pinned " : "", "host memory for stage ", name);
  EPS_RETURN_IF_ERROR(CatchTorch(
      what, [&] { stage = std::make_unique<TorchHostStage>(std::move(layout), pinned, account); },
      kPinnedMemoryKeys));
  return stage;
}

TorchHostStage::TorchHostStage(StageLayout layout, bool pinned, MemoryAccount* account)
    : layout_(std::move(layout)) {
  const auto bytes = static_cast<int64_t>(layout_.bytes());
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (pinned) {
    if (account != nullptr) account->Charge(MemoryKind::kStage, layout_.bytes());
    charge_ = std::make_unique<Charge>(account, MemoryKind::kStage, layout_.bytes());
    all_ = at::empty({bytes}, options.pinned_memory(true));
  } else {
    buffer_ = Buffer(layout_.bytes(), MemoryKind::kStage, account);
    all_ = at::from_blob(buffer_.data(), {bytes}, options);
  }
  data_ = all_.mutable_data_ptr<uint8_t>();
}

uint64_t LargestStage(const JobSpec& spec, at::ScalarType type) {
  uint64_t largest = 0;
  for (const StageSpec& stage : spec.stages) {
    largest = std::max(largest, StageLayout(spec, stage, /*backward=*/true, type).bytes());
  }
  return largest;
}

std::vector<Tensor> TensorsWithoutValues(const StageLayout& layout) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(at::kMeta);
  std::vector<Tensor> tensors;
  for (size_t use = 0; use < layout.uses(); ++use) {
    tensors.push_back(at::empty(layout.shape(use), options));
  }
  return tensors;
}

Tensor TensorIn(const Tensor& bytes, const StageLayout& layout, size_t use) {
  return View(bytes, layout.offset(use), layout, use);
}

Tensor SecondCopyIn(const Tensor& bytes, const StageLayout& layout, size_t use) {
  return View(bytes, layout.second_offset(use), layout, use);
}

}  // namespace eps
