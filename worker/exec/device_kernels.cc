#include "worker/exec/device_kernels.h"

#include <memory>

#include "ATen/ops/empty.h"
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

}  // namespace

const DeviceKernels* DeviceKernels::ForOrNull(const Tensor& like) {
  if (like.device().is_cpu()) return nullptr;
  static const std::unique_ptr<const DeviceKernels> kernels = Load();
  return kernels.get();
}

Tensor DeviceKernels::DropoutMask(const RngKey& key, double p, at::IntArrayRef shape,
                                  const Tensor& like) const {
  Tensor mask = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(like.device()));
  const eps_cuda_mask part = {key.seed,   key.step, key.micro_batch, key.stage, key.site, p,
                              /*first=*/0};
  Check(kernels_.dropout_mask(&part, static_cast<uint64_t>(mask.numel()),
                              mask.mutable_data_ptr<float>(), stream_of_(like.device())),
        "drawing a dropout mask");
  return mask;
}

bool DeviceKernels::HasCrossEntropy(at::ScalarType scores) {
  return scores == at::kFloat || scores == at::kBFloat16;
}

void DeviceKernels::CrossEntropy(const Tensor& scores, const Tensor& labels, double scale,
                                 const Tensor& label_log_p) const {
  TORCH_CHECK(scores.dim() == 2 && scores.is_contiguous() && label_log_p.is_contiguous() &&
                  labels.numel() == scores.size(0) && label_log_p.numel() == scores.size(0) &&
                  label_log_p.scalar_type() == at::kFloat,
              "cross entropy of scores ", scores.sizes(), " and labels ", labels.sizes());
  const Tensor ids = labels.to(at::kInt).contiguous();
  const int elements = scores.scalar_type() == at::kFloat ? EPS_CUDA_FP32 : EPS_CUDA_BF16;
  Check(kernels_.loss(elements, scores.mutable_data_ptr(), ids.const_data_ptr<int32_t>(),
                      static_cast<uint64_t>(scores.size(0)), static_cast<uint64_t>(scores.size(1)),
                      static_cast<float>(scale), label_log_p.mutable_data_ptr<float>(),
                      stream_of_(scores.device())),
        "computing the loss");
}

void DeviceKernels::Check(int error, const char* what) const {
  TORCH_CHECK(error == 0, what, ": ", kernels_.error_text(error));
}

}  // namespace eps
