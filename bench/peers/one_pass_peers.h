#ifndef EPS_BENCH_PEERS_ONE_PASS_PEERS_H_
#define EPS_BENCH_PEERS_ONE_PASS_PEERS_H_

// The peers of a server's one pass: other ways to compute the same bits, for the machine's best
// instruction set. All callers must hold ScopedFlushDenormals.

#include <cstddef>
#include <cstdint>

#include "optimizer/rules/adamw.h"

namespace eps::peers {

// AdamW as in DeepSpeed's cpu_adam: one pass over contiguous memory, eight vectors per step, plain
// stores, no prefetching. REQUIRES tile.rows == 1.
void SpanAdamW(const AdamWScalars& scalars, const AdamWTile& tile);

// AdamW as a chain of passes over the whole model, like an unfused torch.optim.AdamW over a large
// tensor. Runs pass number `pass` for one row; `scratch` has tile.cols floats. REQUIRES tile.rows
// == 1 and scalars.grad_scale == 1.
inline constexpr int kUnfusedPasses = 8;
void UnfusedAdamW(int pass, const AdamWScalars& scalars, const AdamWTile& tile, float* scratch);

// AdamW that reads the bf16 elements of a gradient in place: `grad` has rows of `grad_ld` elements
// of two bytes; tile.grad is not read.
void AdamWOfBf16(const AdamWScalars& scalars, const AdamWTile& tile, const uint8_t* grad,
                 size_t grad_ld);

// Moves the bytes of an AdamW update with a bf16 gradient and bf16 output weights over contiguous
// memory, with prefetching, but with only a maximum and a minimum as arithmetic: the limit that
// memory sets. REQUIRES tile.rows == 1; `out` begins at a cache line.
void MemoryLimitOfBf16(const AdamWTile& tile, const uint8_t* grad, uint8_t* out);

}  // namespace eps::peers

#endif  // EPS_BENCH_PEERS_ONE_PASS_PEERS_H_
