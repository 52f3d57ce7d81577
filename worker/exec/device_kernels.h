#ifndef EPS_WORKER_EXEC_DEVICE_KERNELS_H_
#define EPS_WORKER_EXEC_DEVICE_KERNELS_H_

// Our kernels on tensors of LibTorch, for the stages of models.

#include "ATen/core/Tensor.h"
#include "base/numerics/rng.h"
#include "c10/core/Device.h"
#include "worker/exec/cuda_library.h"

namespace eps {

// Enqueues in the stream in which LibTorch computes. Throws c10::Error with the kernel's error.
// Immutable.
class DeviceKernels {
 public:
  // Returns the current stream of a device.
  using StreamOf = void* (*)(c10::Device device);

  DeviceKernels(const CudaKernels& kernels, StreamOf stream_of)
      : kernels_(kernels), stream_of_(stream_of) {}

  // Returns null if `like` is on a CPU, or if this process has no kernels.
  static const DeviceKernels* ForOrNull(const at::Tensor& like);

  // Returns a mask with the bits of FillDropoutMask, FP32, on the device of `like`.
  at::Tensor DropoutMask(const RngKey& key, double p, at::IntArrayRef shape,
                         const at::Tensor& like) const;
  // Returns whether the functions below take tensors of this type: FP32 and BF16.
  static bool Takes(at::ScalarType type);
  // Returns x times the mask of the key, plus `residual` unless that is undefined, rounded once to
  // their type. Both are contiguous and have the same sizes.
  at::Tensor Dropout(const RngKey& key, double p, const at::Tensor& x,
                     const at::Tensor& residual) const;
  // As LabelLogPGradient (worker/models/loss_head.h) without smoothing, in the memory and the type
  // of `scores` [rows, classes], which are contiguous; `labels` int64 [rows].
  void CrossEntropy(const at::Tensor& scores, const at::Tensor& labels, double scale,
                    const at::Tensor& label_log_p) const;

 private:
  void Check(int error, const char* what) const;

  const CudaKernels kernels_;
  const StreamOf stream_of_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_DEVICE_KERNELS_H_
