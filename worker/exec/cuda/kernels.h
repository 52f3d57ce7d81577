#ifndef EPS_WORKER_EXEC_CUDA_KERNELS_H_
#define EPS_WORKER_EXEC_CUDA_KERNELS_H_

// The functions of libeps_cuda.so, in C: the worker loads the library at run time
// (worker/exec/cuda_library.h), so that one worker serves machines with and without CUDA. This
// header needs no CUDA header.
//
// Every function with a `stream` (a cudaStream_t of the calling thread's current device; null: the
// default stream) enqueues kernels on it and returns without waiting. Pointers are device memory,
// valid until the kernels are done; descriptions of chunks and calls are host memory, read before
// the function returns. 0 is success; else a cudaError_t of a launch, for eps_cuda_error_text; of
// several kernels, those behind it were not enqueued. n = 0 does nothing. Thread-safe.

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Changes with every change of this header; eps_cuda_abi_version() says that of a library.
#define EPS_CUDA_ABI_VERSION 2
int eps_cuda_abi_version(void);

// out[i] = left[i] + right[i] as base/tree_add.h, payloads of NaN apart. `out` may be an input.
int eps_cuda_tree_add(const float* left, const float* right, uint64_t n, float* out, void* stream);
// Between floats and the bits of bfloat16, as the codec bf16 (docs/formats/codecs.md).
int eps_cuda_decode_bf16(const uint16_t* in, uint64_t n, float* out, void* stream);
int eps_cuda_encode_bf16(const float* in, uint64_t n, uint16_t* out, void* stream);

// A chunk: its segments follow each other, each row-major, as chunk maps list them.
typedef struct {
  uint32_t rows;
  uint32_t cols;
} eps_cuda_segment;
typedef struct {
  const eps_cuda_segment* segments;
  uint32_t count;
  // Along which axis blocks run, if the codec has blocks: 0 rows, else columns.
  int column;
} eps_cuda_chunk;

// Between a chunk's floats and its encoded bytes, for the dense codecs by their numbers on the wire
// (1 to 5, 8 to 10, 16 to 21; docs/formats/codecs.md); cudaErrorInvalidValue for others. The bytes
// are exactly those of the CPU's codec, and so are the floats. Encoded bytes are aligned to their
// codes if the codec has no blocks, else at will; the length follows from the chunk. Decoding is
// for bytes that were received whole and checked: it reads what a chunk of this shape has, and
// looks at no value. `truncate`: the variant of that name of the codecs 8 to 10.
int eps_cuda_decode_chunk(uint32_t codec, const eps_cuda_chunk* chunk, const void* in, float* out,
                          void* stream);
int eps_cuda_encode_chunk(uint32_t codec, int truncate, const eps_cuda_chunk* chunk,
                          const float* in, void* out, void* stream);

// topk of n elements, 0 < n <= 2^31. Not sampled: `rank` and `max_count` are ceil(FRACTION * n).
// `sampled`: `rank` is that of the sample's size, `max_count` the most elements that are sent.
typedef struct {
  uint64_t n;
  uint64_t rank;
  uint64_t max_count;
  int sampled;
  int raw32;
} eps_cuda_topk;

// Bytes of `scratch`, which may be used again once the kernels are done.
uint64_t eps_cuda_topk_scratch_bytes(const eps_cuda_topk* call);
// Writes the bytes of the CPU's codec to `out`, and their number to *out_bytes. Error feedback as
// EncodeOptions::residual_or_null. `out` has room for Codec::MaxEncodedSize; `scratch` is aligned
// to 256 bytes, `out_bytes` to 8. cudaErrorInvalidValue for a call that is not as above.
int eps_cuda_encode_topk(const eps_cuda_topk* call, const float* gradient, float* residual_or_null,
                         void* scratch, uint8_t* out, uint64_t* out_bytes, void* stream);

// Static text, never null.
const char* eps_cuda_error_text(int error);

#ifdef __cplusplus
}
#endif

#endif  // EPS_WORKER_EXEC_CUDA_KERNELS_H_
