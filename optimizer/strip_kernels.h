#ifndef EPS_OPTIMIZER_STRIP_KERNELS_H_
#define EPS_OPTIMIZER_STRIP_KERNELS_H_

// The reduction of chunks whose elements can be read in place, strip by strip with the sum in
// registers, for the machine's best instruction set. It gives the bits of decoding tile by tile and
// TreeAdd. This header includes none of the standard library's templates, because strip_kernels.cc
// is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

#include "compression/sparse.h"

namespace eps::strip_kernels {

// One step of a stack machine over strips. The top of the stack is in registers.
enum class StepKind : uint8_t {
  kPush,      // moves the top below
  kReadFp32,  // top = element
  kReadBf16,
  kAddFp32,  // top = top + element
  kAddBf16,
  kReadSparse,
  kAddSparse,
  kPopAdd,  // top = the strip below + top
};
struct Step {
  StepKind kind;
  const uint8_t* elements = nullptr;       // of the chunk, from its first: FP32 and bf16 only
  const SparseElements* sparse = nullptr;  // of the chunk: sparse only
};

// The most strips below the top.
inline constexpr size_t kMaxPushed = 16;
// The elements of the longest strip.
inline constexpr size_t kStrip = 64;

// Runs `steps` for every strip of the chunk's elements [first, first + n) and writes the top of the
// stack to out[0 … n). The calling thread must hold ScopedFlushDenormals. REQUIRES n >= kStrip and
// at most kMaxPushed strips below the top.
void Reduce(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out);

// Uses sums while they are in the first cache.
class PieceSink {
 public:
  // out[offset … offset + n) has its sums. Pieces come in order, and their sizes are multiples of a
  // cache line but for the last.
  virtual void Take(size_t offset, size_t n) = 0;

 protected:
  ~PieceSink() = default;
};

// As Reduce, and gives each piece to `sink` before it sums the next one, so that the sums overlap
// with what the sink computes and with its traffic to memory.
void ReducePieces(const Step* steps, size_t step_count, uint64_t first, size_t n, float* out,
                  PieceSink* sink);

}  // namespace eps::strip_kernels

#endif  // EPS_OPTIMIZER_STRIP_KERNELS_H_
