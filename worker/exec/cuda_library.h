#ifndef EPS_WORKER_EXEC_CUDA_LIBRARY_H_
#define EPS_WORKER_EXEC_CUDA_LIBRARY_H_

// What of CUDA is on this machine, found at run time: the driver, LibTorch's CUDA half, and our
// own kernels. None of them is needed to build or start a worker.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/exec/cuda/kernels.h"

namespace eps {

// The functions of libeps_cuda.so; worker/exec/cuda/kernels.h has their contracts.
struct CudaKernels {
  int (*tree_add)(const float* left, const float* right, uint64_t n, float* out, void* stream);
  int (*decode_bf16)(const uint16_t* in, uint64_t n, float* out, void* stream);
  int (*encode_bf16)(const float* in, uint64_t n, uint16_t* out, void* stream);
  int (*decode_chunk)(uint32_t codec, const eps_cuda_chunk* chunk, const void* in, float* out,
                      void* stream);
  int (*encode_chunk)(uint32_t codec, int truncate, const eps_cuda_chunk* chunk, const float* in,
                      void* out, void* stream);
  uint64_t (*topk_scratch_bytes)(const eps_cuda_topk* call);
  int (*encode_topk)(const eps_cuda_topk* call, const float* gradient, float* residual_or_null,
                     void* scratch, uint8_t* out, uint64_t* out_bytes, void* stream);
  const char* (*error_text)(int error);
};

// Loads the library from the first of `paths` where it is. NotFound names the paths tried;
// FailedPrecondition if a file is there that is not such a library, or one of another version. What
// is loaded stays loaded.
absl::StatusOr<CudaKernels> LoadCudaKernels(const std::vector<std::string>& paths);

// Where a worker looks: beside its program, and where a build puts the library relative to it.
std::vector<std::string> CudaKernelPaths();

// Empty if this machine has an NVIDIA driver, else what the loader says. Loads the driver's library
// but does not start it.
std::string WhyNoCudaDriver();

}  // namespace eps

#endif  // EPS_WORKER_EXEC_CUDA_LIBRARY_H_
