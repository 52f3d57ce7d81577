#ifndef EPS_COMPRESSION_CODECS_TOPK_KERNELS_H_
#define EPS_COMPRESSION_CODECS_TOPK_KERNELS_H_

// The inner loops of top-k, for the best instruction set of the machine; every one gives the same
// bits on every instruction set. Encoded values are little-endian at any alignment; no function
// touches a byte outside of what it names. This header stays free of the standard library's
// templates, because the file that implements it is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

#include "compression/sparse.h"

namespace eps::topk_kernels {

// What elements are chosen by: the bits of the magnitude, and one key above infinity for every NaN,
// whose payload may differ between machines after an addition.
inline constexpr uint32_t kNanKey = 0x7f800001u;
inline uint32_t KeyOfBits(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  return magnitude < kNanKey ? magnitude : kNanKey;
}

// out[r * out_ld + c] = in[r * ld + c], bits kept.
void CopyRows(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld, float* out);
// sum[r * sum_ld + c] = in[r * ld + c] + sum[r * sum_ld + c], FTZ+DAZ whatever the thread's mode.
void AddRows(const float* in, size_t ld, size_t rows, size_t cols, size_t sum_ld, float* sum);

// Elements behind the last one collected that CollectAtLeast may overwrite in `out`.
inline constexpr size_t kCollectSlack = 16;
// The numbers of the first `limit` of n elements whose key is `threshold` or more, ascending;
// returns how many. REQUIRES room for limit + kCollectSlack, n <= 2^32.
size_t CollectAtLeast(const float* x, size_t n, uint32_t threshold, size_t limit, uint32_t* out);

// Value i of `values` = x[indexes[i]] as bf16 (nearest, ties to even; NaN stays NaN).
void RoundChosen(const float* x, const uint32_t* indexes, size_t count, uint8_t* values);
// The same, and x[indexes[i]] -= value i, FTZ+DAZ whatever the thread's mode.
void RoundAndSubtractChosen(float* x, const uint32_t* indexes, size_t count, uint8_t* values);

// before[w] = set bits of the words before w. Returns those of all.
uint64_t CountBits(const uint64_t* words, size_t count, uint32_t* before);

inline constexpr size_t kMaxCols = 128;

// out[r * ld + c] = element first + r * stride + c, +0.0 if it is absent. Bits are kept, also those
// of denormals. REQUIRES cols <= kMaxCols.
void Expand(const SparseElements& sparse, size_t first, size_t stride, size_t rows, size_t cols,
            size_t ld, float* out);
// out[r * ld + c] += that, FTZ+DAZ whatever the thread's mode.
void ExpandAdd(const SparseElements& sparse, size_t first, size_t stride, size_t rows, size_t cols,
               size_t ld, float* out);

}  // namespace eps::topk_kernels

#endif  // EPS_COMPRESSION_CODECS_TOPK_KERNELS_H_
