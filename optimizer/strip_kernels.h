#ifndef EPS_OPTIMIZER_STRIP_KERNELS_H_
#define EPS_OPTIMIZER_STRIP_KERNELS_H_

// The reduction of chunks whose elements can be read in place, strip by strip with the sum in
// registers: for the best instruction set of the machine, bit for bit what decoding tile by tile
// and TreeAdd give. This header stays free of the standard library's templates, because
// strip_kernels.cc is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

#include "compression/sparse.h"
#include "optimizer/kernels.h"

namespace eps::strip_kernels {

// One step of a stack machine over strips. Its top is in registers.
enum class StepKind : uint8_t {
  kPush,      // what is on top goes below it
  kReadFp32,  // top = element
  kReadBf16,
  kAddFp32,  // top = top + element
  kAddBf16,
  kReadSparse,
  kAddSparse,
  kPopAdd,  // top = what is below + top
};
struct Step {
  StepKind kind;
  const uint8_t* elements = nullptr;       // of the chunk, from its first: FP32 and bf16 only
  const SparseElements* sparse = nullptr;  // of the chunk: sparse only
};

// Strips that may lie below the top.
inline constexpr size_t kMaxPushed = 16;
// Elements of the longest strip.
inline constexpr size_t kStrip = 64;

// Runs `steps` for every strip of the chunk's elements [first, first + n) and leaves what is then
// on top in out[0 … n). The calling thread must hold ScopedFlushDenormals. REQUIRES n >= kStrip and
// at most kMaxPushed below the top.
void Reduce(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out);

// Weights and moments of the element `first`, those of later ones behind them.
struct AdamWState {
  float* weight = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
};

// As Reduce, followed by the AdamW update of those elements (optimizer/kernels.h), but piece by
// piece: while one waits for memory or divides, the other adds.
void ReduceAdamW(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out,
                 const AdamWScalars& scalars, const AdamWState& state);

}  // namespace eps::strip_kernels

#endif  // EPS_OPTIMIZER_STRIP_KERNELS_H_
