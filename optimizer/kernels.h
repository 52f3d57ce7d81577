#ifndef EPS_OPTIMIZER_KERNELS_H_
#define EPS_OPTIMIZER_KERNELS_H_

// The arithmetic of the update rules: for the best instruction set of the machine (kernels.cc) and
// in plain scalar C++ (kernels_reference.cc), bit for bit the same for every result that is not
// NaN. All of it needs FTZ+DAZ, which the callers in update_rule.cc set. This header stays free of
// the standard library's templates, because kernels.cc is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

namespace eps {

// The numbers of one AdamW update. Each is computed in double and rounded to float once.
struct AdamWScalars {
  float grad_scale = 1;
  float decay = 1;  // 1 - lr * weight_decay
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float rsqrt_correction2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^t)
};

// `rows` x `cols` elements; row r of the gradient begins at grad + r * grad_ld, that of weight and
// state at r * ld. No two arrays overlap.
struct AdamWTile {
  size_t rows = 0;
  size_t cols = 0;
  const float* grad = nullptr;
  size_t grad_ld = 0;
  float* weight = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  size_t ld = 0;
};

// AdamW, torch.optim.AdamW's formula. Per element, every operation rounded to float on its own (a
// product and the sum after it are never fused), in exactly this order:
//
//   g = grad * grad_scale
//   m = beta1 * m + one_minus_beta1 * g
//   v = beta2 * v + (one_minus_beta2 * g) * g
//   d = sqrt(v) * rsqrt_correction2 + eps
//   p = p * decay - (step_size * m) / d
//
// The bias correction is a product with the reciprocal, because a second division would make the
// kernel slower than memory.
void AdamW(const AdamWScalars& scalars, const AdamWTile& tile);

// The numbers of one SGD update, rounded as those of AdamW.
struct SgdScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  float momentum = 0;
  float lr = 0;
};

// As AdamWTile; `momentum_buffer_or_null` is null if there is no momentum.
struct SgdTile {
  size_t rows = 0;
  size_t cols = 0;
  const float* grad = nullptr;
  size_t grad_ld = 0;
  float* weight = nullptr;
  float* momentum_buffer_or_null = nullptr;
  size_t ld = 0;
};

// SGD, torch.optim.SGD's formula with dampening 0 and a decay that is coupled (part of the
// gradient). Per element, every operation rounded on its own, in this order:
//
//   g = grad * grad_scale + weight_decay * p
//   b = momentum * b + g
//   p = p - lr * b                     without momentum: p - lr * g
//
// torch begins with b = g, which is what a b of zeros gives.
void Sgd(const SgdScalars& scalars, const SgdTile& tile);

// The lanes of SquareSum (update_rule.h).
inline constexpr size_t kSquareLanes = 16;

// lanes[c % 16] += double(s) * double(s) with s = x[r * ld + c] * scale rounded to float, row by
// row, columns ascending. REQUIRES kSquareLanes lanes.
void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes);

// The instruction set that the kernels run on, as Highway calls it: "AVX3", "NEON". For logs and
// benchmarks.
const char* KernelTarget();

namespace reference {

void AdamW(const AdamWScalars& scalars, const AdamWTile& tile);
void Sgd(const SgdScalars& scalars, const SgdTile& tile);
void AddSquares(const float* x, size_t rows, size_t cols, size_t ld, float scale, double* lanes);

}  // namespace reference
}  // namespace eps

#endif  // EPS_OPTIMIZER_KERNELS_H_
