#include "worker/exec/cuda/kernels.h"

#include <cuda_runtime.h>

#include "worker/exec/cuda/elementwise.h"

#define EPS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using eps::elementwise::DecodeBf16One;
using eps::elementwise::EncodeBf16One;
using eps::elementwise::TreeAddOne;

constexpr unsigned kThreads = 256;
// Enough to fill every multiprocessor of a device several times; the loop handles the rest.
constexpr uint64_t kMaxBlocks = 4096;

unsigned BlocksFor(uint64_t n) {
  const uint64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

__device__ uint64_t First() { return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ uint64_t Stride() { return uint64_t{gridDim.x} * blockDim.x; }

// `out` may be an input: the thread that writes an element is the one that reads it.
__global__ void TreeAddKernel(const float* left, const float* right, uint64_t n, float* out) {
  for (uint64_t i = First(); i < n; i += Stride()) out[i] = TreeAddOne(left[i], right[i]);
}

__global__ void DecodeBf16Kernel(const uint16_t* in, uint64_t n, float* out) {
  for (uint64_t i = First(); i < n; i += Stride()) out[i] = DecodeBf16One(in[i]);
}

__global__ void EncodeBf16Kernel(const float* in, uint64_t n, uint16_t* out) {
  for (uint64_t i = First(); i < n; i += Stride()) out[i] = EncodeBf16One(in[i]);
}

}  // namespace

EPS_EXPORT int eps_cuda_abi_version(void) { return EPS_CUDA_ABI_VERSION; }

EPS_EXPORT int eps_cuda_tree_add(const float* left, const float* right, uint64_t n, float* out,
                                 void* stream) {
  if (n == 0) return 0;
  TreeAddKernel<<<BlocksFor(n), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(left, right, n,
                                                                                  out);
  return static_cast<int>(cudaGetLastError());
}

EPS_EXPORT int eps_cuda_decode_bf16(const uint16_t* in, uint64_t n, float* out, void* stream) {
  if (n == 0) return 0;
  DecodeBf16Kernel<<<BlocksFor(n), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, n, out);
  return static_cast<int>(cudaGetLastError());
}

EPS_EXPORT int eps_cuda_encode_bf16(const float* in, uint64_t n, uint16_t* out, void* stream) {
  if (n == 0) return 0;
  EncodeBf16Kernel<<<BlocksFor(n), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, n, out);
  return static_cast<int>(cudaGetLastError());
}

EPS_EXPORT int eps_cuda_register_host(const void* memory, uint64_t bytes, int writable) {
  void* const begin = const_cast<void*>(memory);
  const unsigned flags = cudaHostRegisterPortable;
  const unsigned access = writable != 0 ? 0 : cudaHostRegisterReadOnly;
  cudaError_t error = cudaHostRegister(begin, bytes, flags | access);
  if (error == cudaErrorNotSupported) error = cudaHostRegister(begin, bytes, flags);
  if (error != cudaSuccess) cudaGetLastError();  // it is no error of the next call
  return static_cast<int>(error);
}

EPS_EXPORT int eps_cuda_unregister_host(const void* memory) {
  return static_cast<int>(cudaHostUnregister(const_cast<void*>(memory)));
}

EPS_EXPORT const char* eps_cuda_error_text(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
