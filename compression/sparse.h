#ifndef EPS_COMPRESSION_SPARSE_H_
#define EPS_COMPRESSION_SPARSE_H_

// Elements of a chunk of which few are there, so that a kernel can read them from any place on. The
// header stays free of the standard library's templates, because kernels that are compiled once per
// instruction set include it.

#include <cstddef>
#include <cstdint>

namespace eps {

// In chunk order: element i is present if bit i % 64 of words[i / 64] is set; an absent one is
// +0.0, and is added where elements are. `count` little-endian bf16 values, at any alignment, of
// the present ones in order.
struct SparseElements {
  const uint64_t* words;   // readable for a word behind the last element's; no bit beyond is set
  const uint32_t* before;  // of each word, how many bits are set in those before it
  const uint8_t* values;
  size_t count;
};

}  // namespace eps

#endif  // EPS_COMPRESSION_SPARSE_H_
