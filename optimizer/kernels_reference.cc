#include "optimizer/kernels.h"

namespace eps::reference {

void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const float scaled = x[r * ld + c] * scale;
      lanes[c % kSquareLanes] += double{scaled} * double{scaled};
    }
  }
}

}  // namespace eps::reference
