#include "worker/exec/cuda/device_grid.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/topk_launches.h"

#define EPS_EXPORT extern "C" __attribute__((visibility("default")))

EPS_EXPORT uint64_t eps_cuda_topk_scratch_bytes(const eps_cuda_topk* call) {
  return eps::grid::LayOutTopkScratch(call->n, call->max_count).bytes;
}

EPS_EXPORT int eps_cuda_encode_topk(const eps_cuda_topk* call, const float* gradient,
                                    float* residual_or_null, void* scratch, uint8_t* out,
                                    uint64_t* out_bytes, void* stream) {
  eps::grid::DeviceGrid device(stream);
  return eps::grid::LaunchEncodeTopk(*call, gradient, residual_or_null, scratch, out, out_bytes,
                                     device);
}
