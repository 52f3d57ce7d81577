#ifndef EPS_WORKER_EXEC_CUDA_KERNELS_H_
#define EPS_WORKER_EXEC_CUDA_KERNELS_H_

// The functions of libeps_cuda.so, in C: the worker loads the library at run time
// (worker/exec/cuda_library.h), so that one worker serves machines with and without CUDA. This
// header needs no CUDA header.
//
// Every function enqueues one kernel on `stream` (a cudaStream_t of the calling thread's current
// device; null: the default stream) and returns without waiting. Pointers are device memory, valid
// until the kernel is done. 0 is success; else a cudaError_t of the launch, for
// eps_cuda_error_text. n = 0 does nothing. Thread-safe.

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Changes with every change of this header; eps_cuda_abi_version() says that of a library.
#define EPS_CUDA_ABI_VERSION 1
int eps_cuda_abi_version(void);

// out[i] = left[i] + right[i] as common/tree_add.h, payloads of NaN apart. `out` may be an input.
int eps_cuda_tree_add(const float* left, const float* right, uint64_t n, float* out, void* stream);
// Between floats and the bits of bfloat16, as the codec bf16 (docs/formats/codecs.md).
int eps_cuda_decode_bf16(const uint16_t* in, uint64_t n, float* out, void* stream);
int eps_cuda_encode_bf16(const float* in, uint64_t n, uint16_t* out, void* stream);

// Static text, never null.
const char* eps_cuda_error_text(int error);

#ifdef __cplusplus
}
#endif

#endif  // EPS_WORKER_EXEC_CUDA_KERNELS_H_
