#ifndef EPS_BENCH_PEERS_MEMORY_LIMIT_H_
#define EPS_BENCH_PEERS_MEMORY_LIMIT_H_

#include "optimizer/rules/adamw.h"

namespace eps {

// Moves the bytes that AdamW moves over one contiguous row, in the same order, with the same
// prefetching and instruction set, but with only a maximum and a minimum as arithmetic: the limit
// that memory sets. REQUIRES tile.rows == 1.
void MemoryLimit(const AdamWTile& tile);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_MEMORY_LIMIT_H_
