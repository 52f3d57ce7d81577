#ifndef EPS_OPTIMIZER_KERNELS_H_
#define EPS_OPTIMIZER_KERNELS_H_

// The arithmetic that all update rules share, for the machine's best instruction set (kernels.cc)
// and in plain scalar C++ (kernels_reference.cc). Both give the same bits for every result that is
// not NaN. All of it needs FTZ+DAZ, which the callers in update_rule.cc set. This header includes
// none of the standard library's templates, because kernels.cc is compiled once per instruction
// set.

#include <cstddef>

namespace eps {

// The lanes of SquareSum (update_rule.h).
inline constexpr size_t kSquareLanes = 16;

// lanes[c % 16] += double(s) * double(s) with s = x[r * ld + c] * scale rounded to float, row by
// row, columns ascending. REQUIRES kSquareLanes lanes.
void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes);

// Returns Highway's name of the instruction set that the kernels use: "AVX3", "NEON". For logs and
// benchmarks.
const char* KernelTarget();

namespace reference {

void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes);

}  // namespace reference
}  // namespace eps

#endif  // EPS_OPTIMIZER_KERNELS_H_
