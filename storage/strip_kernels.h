#ifndef EPS_STORAGE_STRIP_KERNELS_H_
#define EPS_STORAGE_STRIP_KERNELS_H_

// The reduction of chunks whose elements can be read in place, strip by strip of a row with the sum
// in registers: for the best instruction set of the machine, bit for bit what decoding tile by tile
// and TreeAdd give. This header stays free of the standard library's templates, because
// strip_kernels.cc is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

namespace eps::strip_kernels {

// One step of a stack machine over strips. Its top is in registers.
enum class StepKind : uint8_t {
  kPush,      // what is on top goes below it
  kReadFp32,  // top = element
  kReadBf16,
  kAddFp32,  // top = top + element
  kAddBf16,
  kPopAdd,  // top = what is below + top
};
struct Step {
  StepKind kind;
  const uint8_t* elements;  // of the chunk, from its first; null unless an element is read
};

// Strips that may lie below the top.
inline constexpr size_t kMaxPushed = 16;

// Rows of a tile must have at least this many columns.
inline constexpr size_t kMinCols = 64;

// A tile of `rows` x `cols` elements in a chunk: its first is number `element` of the chunk, each
// row `ld` elements behind the one before. Memory is fetched `ahead` elements ahead.
struct Source {
  uint64_t element = 0;
  size_t rows = 0;
  size_t cols = 0;
  size_t ld = 0;
  size_t ahead = 0;
};

// Runs `steps` for every strip of the tile, leaves what is then on top in out[r * out_ld + c], and
// adds it to the sum of squares as AddSquares (optimizer/kernels.h) does. The calling thread must
// hold ScopedFlushDenormals. REQUIRES source.cols >= kMinCols and at most kMaxPushed below the top.
void Reduce(const Step* steps, size_t n, const Source& source, size_t out_ld, float* out,
            float scale, double* lanes);

}  // namespace eps::strip_kernels

#endif  // EPS_STORAGE_STRIP_KERNELS_H_
