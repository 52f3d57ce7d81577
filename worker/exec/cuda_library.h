#ifndef EPS_WORKER_EXEC_CUDA_LIBRARY_H_
#define EPS_WORKER_EXEC_CUDA_LIBRARY_H_

// Finds the parts of CUDA on this machine at run time: the driver, LibTorch's CUDA half, and our
// own kernels. A worker builds and starts without any of them.

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
  int (*decode_chunk_bf16)(uint32_t codec, const eps_cuda_chunk* chunk, const void* in,
                           uint16_t* out, void* stream);
  uint64_t (*topk_scratch_bytes)(const eps_cuda_topk* call);
  int (*encode_topk)(const eps_cuda_topk* call, const float* gradient, float* residual_or_null,
                     void* scratch, uint8_t* out, uint64_t* out_bytes, void* stream);
  int (*dropout)(const eps_cuda_mask* mask, int elements, const void* x,
                 const void* residual_or_null, uint64_t n, void* y, void* stream);
  int (*dropout_mask)(const eps_cuda_mask* mask, uint64_t n, float* out, void* stream);
  int (*loss)(int elements, void* logits, const int32_t* labels, uint64_t rows, uint64_t vocab,
              float scale, float* label_log_p, void* stream);
  int (*crc32c)(const void* bytes, uint64_t n, uint32_t* crcs, void* stream);
  int (*register_host)(const void* memory, uint64_t bytes, int writable);
  int (*unregister_host)(const void* memory);
  const char* (*error_text)(int error);
};

// Loads the library from the first of `paths` that exists. Returns NotFound with the paths tried;
// FailedPrecondition if a file is not such a library, or one of another version. The library stays
// loaded.
absl::StatusOr<CudaKernels> LoadCudaKernels(const std::vector<std::string>& paths);

// Returns where a worker looks: beside its program, and where a build puts the library.
std::vector<std::string> CudaKernelPaths();

inline constexpr char kCudaDriver[] = "libcuda.so.1";

// Returns model and compute capability of a device of this process, by LibTorch's numbers, such as
// "NVIDIA H100 80GB HBM3 sm_90": devices that are equal in both compute the same bits. Returns
// FailedPrecondition with the call that failed. `driver` is the file of the driver's library.
absl::StatusOr<std::string> CudaDeviceModel(int index, const std::string& driver);

// Returns an empty text if this machine has an NVIDIA driver, otherwise the loader's error. Loads
// the driver's library without initialising it.
std::string WhyNoCudaDriver();

}  // namespace eps

#endif  // EPS_WORKER_EXEC_CUDA_LIBRARY_H_
