#ifndef EPS_COMPRESSION_CODECS_TOPK_KERNELS_H_
#define EPS_COMPRESSION_CODECS_TOPK_KERNELS_H_

// The inner loops of top-k, for the best instruction set of the machine; each gives the same bits
// on every instruction set. Encoded values are little-endian at any alignment. No function accesses
// a byte outside of its arguments. This header is free of standard library templates, because the
// file that implements it is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

#include "compression/sparse.h"

namespace eps::topk_kernels {

// The key by which elements are selected: the bits of the magnitude. All NaNs share one key above
// infinity, because their payloads may differ between machines after an addition.
inline constexpr uint32_t kNanKey = 0x7f800001u;
inline uint32_t KeyOfBits(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  return magnitude < kNanKey ? magnitude : kNanKey;
}

// out[r * out_ld + c] = in[r * ld + c], keeping the bits.
void CopyRows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, float* out);
// sum[r * sum_ld + c] = in[r * ld + c] + sum[r * sum_ld + c], with FTZ+DAZ in any mode of the
// thread.
void AddRows(const float* in, size_t ld, size_t rows, size_t cols, size_t sum_ld, float* sum);

// Elements after the last collected one that CollectAtLeast may overwrite in `out`.
inline constexpr size_t kCollectSlack = 16;
// Writes the ascending indexes of the first `limit` of n elements whose key is at least
// `threshold`, and returns their number. REQUIRES room for limit + kCollectSlack indexes, n <=
// 2^32.
size_t CollectAtLeast(const float* x, size_t n, uint32_t threshold, size_t limit, uint32_t* out);

// Value i of `values` = x[indexes[i]]: with value_bytes = 2 as bf16 (nearest, ties to even; NaN
// stays NaN), with 4 as FP32, bit for bit.
void EncodeChosen(const float* x, const uint32_t* indexes, size_t count, size_t value_bytes,
                  uint8_t* values);
// The same, and x[indexes[i]] -= value i, with FTZ+DAZ in any mode of the thread.
void EncodeAndSubtractChosen(float* x, const uint32_t* indexes, size_t count, size_t value_bytes,
                             uint8_t* values);

// before[w] = number of bits set in the words before w. Returns the number of bits set in all
// words.
uint64_t CountBits(const uint64_t* words, size_t count, uint32_t* before);

inline constexpr size_t kMaxCols = 128;

// out[r * ld + c] = element first + r * stride + c, or +0.0 if it is absent. Bits are kept, also
// those of denormals. REQUIRES cols <= kMaxCols.
void Expand(const SparseElements& sparse, size_t first, size_t stride, size_t rows, size_t cols,
            size_t ld, float* out);
// out[r * ld + c] += that element, with FTZ+DAZ in any mode of the thread.
void ExpandAdd(const SparseElements& sparse, size_t first, size_t stride, size_t rows, size_t cols,
               size_t ld, float* out);

}  // namespace eps::topk_kernels

#endif  // EPS_COMPRESSION_CODECS_TOPK_KERNELS_H_
