#ifndef EPS_COMPRESSION_CODECS_TOPK_SELECTION_H_
#define EPS_COMPRESSION_CODECS_TOPK_SELECTION_H_

// The selection of the elements of a chunk to send. Deterministic: the result depends only on the
// elements and is the same on every machine. n <= 2^32 for one array.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/bytes.h"

namespace eps::topk {

// The indexes of the selected elements, ascending.
struct Selection {
  Buffer memory;  // scratch memory of the account
  size_t count = 0;

  const uint32_t* indexes() const { return reinterpret_cast<const uint32_t*>(memory.data()); }
};

// Selects the k nonzero elements of largest magnitude, with NaN above infinity and lower indexes
// first among equals; all nonzero elements if there are fewer than k.
Selection SelectLargest(const float* x, size_t n, size_t k, MemoryAccount* account);

// Returns for each of several arrays how many of its elements SelectLargest would select from their
// concatenation. `array(i)` returns the array of sizes[i] elements. It is called several times per
// array, and its result must stay valid until the next call.
std::vector<uint64_t> CountLargest(const std::vector<uint64_t>& sizes, uint64_t k,
                                   const std::function<const float*(size_t)>& array);

// The distance between sampled elements.
inline constexpr size_t kSampleStride = 64;
// Selects the first `limit` nonzero elements whose magnitude is at least that of rank `sample_rank`
// (from 1) among the elements 0, 64, 128, … REQUIRES 1 <= sample_rank <= the number of these.
Selection SelectSampled(const float* x, size_t n, size_t sample_rank, size_t limit,
                        MemoryAccount* account);

}  // namespace eps::topk

#endif  // EPS_COMPRESSION_CODECS_TOPK_SELECTION_H_
