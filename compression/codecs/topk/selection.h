#ifndef EPS_COMPRESSION_CODECS_TOPK_SELECTION_H_
#define EPS_COMPRESSION_CODECS_TOPK_SELECTION_H_

// Which elements of a chunk are sent. Deterministic: the answer is a function of the elements
// alone, equal on every machine. n <= 2^32, of one array.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/bytes.h"

namespace eps::topk {

// Ascending numbers of the chosen elements.
struct Selection {
  Buffer memory;  // scratch of the account
  size_t count = 0;

  const uint32_t* indexes() const { return reinterpret_cast<const uint32_t*>(memory.data()); }
};

// The k elements of largest magnitude that are not zero, NaN above infinity, those of lower number
// first among equals; all that are not zero if these are fewer.
Selection SelectLargest(const float* x, size_t n, size_t k, MemoryAccount* account);

// How many elements of each of several arrays are among those that SelectLargest chooses of all of
// them, one after the other. `array(i)`, of sizes[i] elements, is asked for several times and valid
// until the next call.
std::vector<uint64_t> CountLargest(const std::vector<uint64_t>& sizes, uint64_t k,
                                   const std::function<const float*(size_t)>& array);

// The distance between the elements of the sample.
inline constexpr size_t kSampleStride = 64;
// The first `limit` elements that are not zero and whose magnitude is at least that of rank
// `sample_rank` (from 1) among the elements 0, 64, 128, … REQUIRES 1 <= sample_rank <= their
// number.
Selection SelectSampled(const float* x, size_t n, size_t sample_rank, size_t limit,
                        MemoryAccount* account);

}  // namespace eps::topk

#endif  // EPS_COMPRESSION_CODECS_TOPK_SELECTION_H_
