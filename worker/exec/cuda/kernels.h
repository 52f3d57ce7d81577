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
#define EPS_CUDA_ABI_VERSION 5
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
// As eps_cuda_decode_chunk, and rounds each float as eps_cuda_encode_bf16 does.
int eps_cuda_decode_chunk_bf16(uint32_t codec, const eps_cuda_chunk* chunk, const void* in,
                               uint16_t* out, void* stream);

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

// The elements of tensors: floats, or the bits of bfloat16. These are widened when read, computed
// in FP32, and rounded once when written, to nearest, ties to even. Denormal floats are read and
// written as zeros of their sign. Other numbers return cudaErrorInvalidValue.
#define EPS_CUDA_FP32 1
#define EPS_CUDA_BF16 2

// A part of a dropout mask: the key is RngKey (base/numerics/rng.h), `p` the probability that an
// element is dropped, 0 <= p < 1, and `first` the element of the mask that belongs to element 0 of
// the call. Another p returns cudaErrorInvalidValue.
typedef struct {
  uint64_t seed;
  uint64_t step;
  uint32_t micro_batch;
  uint16_t stage;
  uint16_t site;
  double p;
  uint64_t first;
} eps_cuda_mask;

// y[i] = x[i] * mask[i] + residual[i], each operation rounded, with the bits of FillDropoutMask.
// Without a residual nothing is added. `y` may be `x` or the residual. Payloads of NaN may differ
// from the CPU's.
int eps_cuda_dropout(const eps_cuda_mask* mask, int elements, const void* x,
                     const void* residual_or_null, uint64_t n, void* y, void* stream);
// Writes the mask's elements first to first + n.
int eps_cuda_dropout_mask(const eps_cuda_mask* mask, uint64_t n, float* out, void* stream);

// Cross entropy of logits [rows, vocab]. Writes the logarithm of the probability of each row's
// label to label_log_p [rows], with an error of at most 2^-24 (4 |it| + ln vocab + 13), and
// replaces the logits with the gradient of -scale * (sum of label_log_p) by them. A row with
// EPS_CUDA_IGNORE_LABEL gets 0 and zeros. A row with NaN, with +infinity, with -infinity alone, or
// with a label that is no class gets NaN everywhere. The bits of a row depend on its values alone,
// and are those of the same code on a CPU. vocab = 0 or more than 2^31 - 1 rows return
// cudaErrorInvalidValue.
#define EPS_CUDA_IGNORE_LABEL (-100)
int eps_cuda_loss(int elements, void* logits, const int32_t* labels, uint64_t rows, uint64_t vocab,
                  float scale, float* label_log_p, void* stream);

// Writes the CRC32C (base/checksum.h) of each piece of n bytes, of which all but the last have
// EPS_CUDA_CRC_PIECE bytes, to crcs [ceil(n / EPS_CUDA_CRC_PIECE)]. The bytes may have any
// alignment; a multiple of 4 is faster.
#define EPS_CUDA_CRC_PIECE 65536
int eps_cuda_crc32c(const void* bytes, uint64_t n, uint32_t* crcs, void* stream);

// Makes memory of the host one from which devices copy without a buffer, and to which they do if it
// is `writable`, until it is unregistered. Waits.
int eps_cuda_register_host(const void* memory, uint64_t bytes, int writable);
int eps_cuda_unregister_host(const void* memory);

// Returns a static text, never null.
const char* eps_cuda_error_text(int error);

#ifdef __cplusplus
}
#endif

#endif  // EPS_WORKER_EXEC_CUDA_KERNELS_H_
