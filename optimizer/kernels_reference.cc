#include <cmath>

#include "optimizer/kernels.h"

namespace eps::reference {

void AdamW(const AdamWScalars& scalars, const AdamWTile& tile) {
  const AdamWScalars s = scalars;
  for (size_t r = 0; r < tile.rows; ++r) {
    for (size_t c = 0; c < tile.cols; ++c) {
      const size_t i = r * tile.ld + c;
      const float g = tile.grad[r * tile.grad_ld + c] * s.grad_scale;
      const float m = s.beta1 * tile.exp_avg[i] + s.one_minus_beta1 * g;
      const float v = s.beta2 * tile.exp_avg_sq[i] + (s.one_minus_beta2 * g) * g;
      const float d = std::sqrt(v) * s.rsqrt_correction2 + s.eps;
      tile.weight[i] = tile.weight[i] * s.decay - (s.step_size * m) / d;
      tile.exp_avg[i] = m;
      tile.exp_avg_sq[i] = v;
    }
  }
}

void Sgd(const SgdScalars& scalars, const SgdTile& tile) {
  const SgdScalars s = scalars;
  for (size_t r = 0; r < tile.rows; ++r) {
    for (size_t c = 0; c < tile.cols; ++c) {
      const size_t i = r * tile.ld + c;
      const float g =
          tile.grad[r * tile.grad_ld + c] * s.grad_scale + s.weight_decay * tile.weight[i];
      float b = g;
      if (tile.momentum_buffer_or_null != nullptr) {
        b = s.momentum * tile.momentum_buffer_or_null[i] + g;
        tile.momentum_buffer_or_null[i] = b;
      }
      tile.weight[i] = tile.weight[i] - s.lr * b;
    }
  }
}

void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const float scaled = x[r * ld + c] * scale;
      lanes[c % kSquareLanes] += double{scaled} * double{scaled};
    }
  }
}

}  // namespace eps::reference
