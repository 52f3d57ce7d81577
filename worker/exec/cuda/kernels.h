#ifndef EPS_WORKER_EXEC_CUDA_KERNELS_H_
#define EPS_WORKER_EXEC_CUDA_KERNELS_H_

// The functions of libeps_cuda.so, in C. The worker loads the library at run time
// (worker/exec/cuda_library.h), so that one worker serves machines with and without CUDA. This
// header needs no CUDA header.
//
// Every function with a `stream` (a cudaStream_t of the calling thread's current device; null: the
// default stream) enqueues kernels on it and returns without waiting. Pointers refer to device
// memory and must stay valid until the kernels are done; descriptions of chunks and calls are in
// host memory and are read before the function returns. Returns 0, or the cudaError_t of a launch,
// for eps_cuda_error_text; after an error, the call's remaining kernels are not enqueued. n = 0
// does nothing. Thread-safe.

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Increase this with every change of the interface. eps_cuda_abi_version() returns a library's own
// version.
#define EPS_CUDA_ABI_VERSION 2
int eps_cuda_abi_version(void);

// out[i] = left[i] + right[i] as in base/numerics/tree_add.h, except payloads of NaN. `out` may be
// an input.
int eps_cuda_tree_add(const float* left, const float* right, uint64_t n, float* out, void* stream);
// Convert between floats and the bits of bfloat16, as the codec bf16 (docs/formats/codecs.md).
int eps_cuda_decode_bf16(const uint16_t* in, uint64_t n, float* out, void* stream);
int eps_cuda_encode_bf16(const float* in, uint64_t n, uint16_t* out, void* stream);

// A chunk: its segments are contiguous, each row-major, in the order of the chunk map.
typedef struct {
  uint32_t rows;
  uint32_t cols;
} eps_cuda_segment;
typedef struct {
  const eps_cuda_segment* segments;
  uint32_t count;
  // The axis along which blocks run, if the codec has blocks: 0 for rows, otherwise columns.
  int column;
} eps_cuda_chunk;

// Convert between a chunk's floats and its encoded bytes. `codec` is a dense codec's number on the
// wire (1 to 5, 8 to 10, 16 to 21; docs/formats/codecs.md); others return cudaErrorInvalidValue.
// Bytes and floats are exactly those of the CPU's codec. Encoded bytes must be aligned to their
// codes if the codec has no blocks; otherwise any alignment will do. Their length follows from the
// chunk. Decode only bytes that were received completely and checked: decoding reads what a chunk
// of this shape has and checks no value. `truncate` selects that variant of the codecs 8 to 10.
int eps_cuda_decode_chunk(uint32_t codec, const eps_cuda_chunk* chunk, const void* in, float* out,
                          void* stream);
int eps_cuda_encode_chunk(uint32_t codec, int truncate, const eps_cuda_chunk* chunk,
                          const float* in, void* out, void* stream);

// The parameters of topk for n elements, 0 < n <= 2^31. Without `sampled`, `rank` and `max_count`
// are ceil(FRACTION * n). With it, `rank` is the rank within the sample, and `max_count` the most
// elements to send.
typedef struct {
  uint64_t n;
  uint64_t rank;
  uint64_t max_count;
  int sampled;
  int raw32;
} eps_cuda_topk;

// Returns the bytes of `scratch`, which may be reused once the kernels are done.
uint64_t eps_cuda_topk_scratch_bytes(const eps_cuda_topk* call);
// Writes the bytes of the CPU's codec to `out`, and their number to *out_bytes. Error feedback as
// in EncodeOptions::residual_or_null. `out` must have room for Codec::MaxEncodedSize; `scratch`
// must be aligned to 256 bytes, `out_bytes` to 8. Returns cudaErrorInvalidValue for any other call.
int eps_cuda_encode_topk(const eps_cuda_topk* call, const float* gradient, float* residual_or_null,
                         void* scratch, uint8_t* out, uint64_t* out_bytes, void* stream);

// Returns a static text, never null.
const char* eps_cuda_error_text(int error);

#ifdef __cplusplus
}
#endif

#endif  // EPS_WORKER_EXEC_CUDA_KERNELS_H_
