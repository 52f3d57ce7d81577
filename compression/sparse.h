#ifndef EPS_COMPRESSION_SPARSE_H_
#define EPS_COMPRESSION_SPARSE_H_

// The few present elements of a sparse chunk, in a form that kernels can read from any position.
// This header is free of standard library templates, because kernels that are compiled once per
// instruction set include it.

#include <cstddef>
#include <cstdint>

namespace eps {

// Elements in chunk order: element i is present if bit i % 64 of words[i / 64] is set; an absent
// element is +0.0 and takes part in additions. `values` holds `count` little-endian values, at any
// alignment: those of the present elements in order.
struct SparseElements {
  const uint64_t* words;   // one more word is readable; no bit past the end is set
  const uint32_t* before;  // number of bits set in the words before each word
  const uint8_t* values;
  size_t count;
  size_t value_bytes = 2;  // of one value; 2: bf16, 4: FP32
};

}  // namespace eps

#endif  // EPS_COMPRESSION_SPARSE_H_
