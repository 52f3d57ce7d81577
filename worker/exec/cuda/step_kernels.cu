#include "worker/exec/cuda/device_grid.h"
#include "worker/exec/cuda/dropout_bodies.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/loss_bodies.h"

#define EPS_EXPORT extern "C" __attribute__((visibility("default")))

EPS_EXPORT int eps_cuda_dropout(const eps_cuda_mask* mask, int elements, const void* x,
                                const void* residual_or_null, uint64_t n, void* y, void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchDropout(*mask, elements, x, residual_or_null, n, y, device);
}

EPS_EXPORT int eps_cuda_dropout_mask(const eps_cuda_mask* mask, uint64_t n, float* out,
                                     void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchDropoutMask(*mask, n, out, device);
}

EPS_EXPORT int eps_cuda_loss(int elements, void* logits, const int32_t* labels, uint64_t rows,
                             uint64_t vocab, float scale, float* label_log_p, void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchLoss(elements, logits, labels, rows, vocab, scale, label_log_p, device);
}
