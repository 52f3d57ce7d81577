#ifndef EPS_OPTIMIZER_RULES_ADAMW_H_
#define EPS_OPTIMIZER_RULES_ADAMW_H_

// The arithmetic of AdamW, for the machine's best instruction set and in plain scalar C++. Both
// give the same bits for every result that is not NaN. The calling thread must hold
// ScopedFlushDenormals. This header includes none of the standard library's templates, because
// kernel files are compiled once per instruction set.

#include <cstddef>

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

// AdamW with the formula of torch.optim.AdamW. Each operation on an element is rounded to float on
// its own (a product and the sum after it are never fused), in exactly this order:
//
//   g = grad * grad_scale
//   m = beta1 * m + one_minus_beta1 * g
//   v = beta2 * v + (one_minus_beta2 * g) * g
//   d = sqrt(v) * rsqrt_correction2 + eps
//   p = p * decay - (step_size * m) / d
//
// The bias correction multiplies by the reciprocal, because a second division would make the kernel
// slower than memory.
void AdamW(const AdamWScalars& scalars, const AdamWTile& tile);

namespace reference {

void AdamW(const AdamWScalars& scalars, const AdamWTile& tile);

}  // namespace reference
}  // namespace eps

#endif  // EPS_OPTIMIZER_RULES_ADAMW_H_
