#ifndef EPS_BENCH_PEERS_MEMORY_LIMIT_H_
#define EPS_BENCH_PEERS_MEMORY_LIMIT_H_

#include <cstddef>

namespace eps {

// Moves the bytes that an update rule moves over `n` elements, a multiple of 16, in the same order
// and with the same prefetching and instruction set, but with only a maximum and a minimum as
// arithmetic: the limit that memory sets. Reads `grad`; reads and writes `weight` and the first
// `count` of `fields`, at most two.
void MemoryLimit(size_t n, const float* grad, float* weight, float* const* fields, size_t count);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_MEMORY_LIMIT_H_
