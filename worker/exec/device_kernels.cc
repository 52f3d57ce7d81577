#include "worker/exec/device_kernels.h"

#include <memory>

#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"

namespace eps {
namespace {

using at::Tensor;

void* CurrentStream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

std::unique_ptr<const DeviceKernels> Load() {
  const auto kernels = LoadCudaKernels(CudaKernelPaths());
  if (!kernels.ok()) return nullptr;
  return std::make_unique<DeviceKernels>(*kernels, &CurrentStream);
}

eps_cuda_mask WholeMask(const RngKey& key, double p) {
  return {key.seed, key.step, key.micro_batch, key.stage, key.site, p, /*first=*/0};
}

// REQUIRES a type that the kernels take.
int ElementsOf(const Tensor& x) {
  return x.scalar_type() == at::kFloat ? EPS_CUDA_FP32 : EPS_CUDA_BF16;
}

}  // namespace

const DeviceKernels* DeviceKernels::ForOrNull(const Tensor& like) {
  if (like.device().is_cpu()) return nullptr;
  static const std::unique_ptr<const DeviceKernels> kernels = Load();
  return kernels.get();
}

Tensor DeviceKernels::DropoutMask(const RngKey& key, double p, at::IntArrayRef shape,
                                  const Tensor& like) const {
  Tensor mask = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(like.device()));
  const eps_cuda_mask whole = WholeMask(key, p);
  Check(kernels_.dropout_mask(&whole, static_cast<uint64_t>(mask.numel()),
                              mask.mutable_data_ptr<float>(), stream_of_(like.device())),
        "drawing a dropout mask");
  return mask;
}

bool DeviceKernels::Takes(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16;
}

Tensor DeviceKernels::Dropout(const RngKey& key, double p, const Tensor& x,
                              const Tensor& residual) const {
  TORCH_CHECK(Takes(x.scalar_type()) && x.is_contiguous(), "dropout of ", x.scalar_type(), " ",
              x.sizes(), " with strides ", x.strides());
  TORCH_CHECK(!residual.defined() || (residual.scalar_type() == x.scalar_type() &&
                                      residual.sizes() == x.sizes() && residual.is_contiguous()),
              "dropout of ", x.scalar_type(), " ", x.sizes(), " and a residual of ",
              residual.scalar_type(), " ", residual.sizes());
  Tensor y = at::empty_like(x);
  const eps_cuda_mask whole = WholeMask(key, p);
  Check(kernels_.dropout(&whole, ElementsOf(x), x.const_data_ptr(),
                         residual.defined() ? residual.const_data_ptr() : nullptr,
                         static_cast<uint64_t>(x.numel()), y.mutable_data_ptr(),
                         stream_of_(x.device())),
        "dropping elements");
  return y;
}

void DeviceKernels::CrossEntropy(const Tensor& scores, const Tensor& labels, double scale,
                                 const Tensor& label_log_p) const {
  TORCH_CHECK(scores.dim() == 2 && scores.is_contiguous() && label_log_p.is_contiguous() &&
                  labels.numel() == scores.size(0) && label_log_p.numel() == scores.size(0) &&
                  label_log_p.scalar_type() == at::kFloat,
              "cross entropy of scores ", scores.sizes(), " and labels ", labels.sizes());
  const Tensor ids = labels.to(at::kInt).contiguous();
  Check(kernels_.loss(ElementsOf(scores), scores.mutable_data_ptr(), ids.const_data_ptr<int32_t>(),
                      static_cast<uint64_t>(scores.size(0)), static_cast<uint64_t>(scores.size(1)),
                      static_cast<float>(scale), label_log_p.mutable_data_ptr<float>(),
                      stream_of_(scores.device())),
        "computing the loss");
}

void DeviceKernels::Check(int error, const char* what) const {
  TORCH_CHECK(error == 0, what, ": ", kernels_.error_text(error));
}

}  // namespace eps
