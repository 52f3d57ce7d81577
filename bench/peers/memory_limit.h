#ifndef EPS_BENCH_PEERS_MEMORY_LIMIT_H_
#define EPS_BENCH_PEERS_MEMORY_LIMIT_H_

#include "optimizer/kernels.h"

namespace eps {

// Moves the bytes that AdamW moves over one contiguous row, in the same order, with the same
// prefetching and on the same instruction set, but with a maximum and a minimum for arithmetic:
// what memory allows. REQUIRES tile.rows == 1.
void MemoryLimit(const AdamWTile& tile);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_MEMORY_LIMIT_H_
