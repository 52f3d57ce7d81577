#ifndef EPS_BENCH_PEERS_ONE_PASS_PEERS_H_
#define EPS_BENCH_PEERS_ONE_PASS_PEERS_H_

// What a server's one pass is measured against: other ways to the same bits, for the best
// instruction set of the machine. All callers hold ScopedFlushDenormals.

#include <cstddef>
#include <cstdint>

#include "optimizer/kernels.h"

namespace eps::peers {

// AdamW as DeepSpeed's cpu_adam does it: one pass over contiguous memory, eight vectors a step,
// plain stores, no prefetching. REQUIRES tile.rows == 1.
void SpanAdamW(const AdamWScalars& scalars, const AdamWTile& tile);

// AdamW as a chain of passes over the whole model, as an unfused torch.optim.AdamW makes them over
// a large tensor: this is pass number `pass` for one row; `scratch` has tile.cols floats. REQUIRES
// tile.rows == 1 and scalars.grad_scale == 1.
inline constexpr int kUnfusedPasses = 8;
void UnfusedAdamW(int pass, const AdamWScalars& scalars, const AdamWTile& tile, float* scratch);

// AdamW that reads bf16 elements of a gradient in place: `grad` has rows of `grad_ld` elements of
// two bytes; tile.grad is not read.
void AdamWOfBf16(const AdamWScalars& scalars, const AdamWTile& tile, const uint8_t* grad,
                 size_t grad_ld);

// Moves the bytes that AdamW with a bf16 gradient and bf16 weights as output moves over contiguous
// memory, with prefetching and with a maximum and a minimum for arithmetic: what memory allows.
// REQUIRES tile.rows == 1; `out` begins at a cache line.
void MemoryLimitOfBf16(const AdamWTile& tile, const uint8_t* grad, uint8_t* out);

}  // namespace eps::peers

#endif  // EPS_BENCH_PEERS_ONE_PASS_PEERS_H_
