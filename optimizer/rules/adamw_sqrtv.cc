#include <cmath>

#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/adamw_sqrtv.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_ADAMW_SQRTV_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_ADAMW_SQRTV_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded once, to
// float if it is one.
struct SqrtVScalars {
  float grad_scale = 1;
  float decay = 1;  // 1 - lr * weight_decay
  float beta1 = 0;
  float one_minus_beta1 = 0;
  double sqrt_beta2 = 0;
  double sqrt_one_minus_beta2 = 0;
  float rsqrt_correction2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^t)
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_ADAMW_SQRTV_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// AdamW that keeps s, the root of the second moment, as the Adam of NNTile does: the square of a
// gradient of 1e-25 is not a float, its root is. Otherwise the formula of torch.optim.AdamW. Each
// operation on an element is rounded on its own, those of s to double until its last, in this
// order:
//
//   g = grad * grad_scale
//   m = beta1 * m + one_minus_beta1 * g
//   s = float(sqrt((sqrt_beta2 * s)^2 + (sqrt_one_minus_beta2 * g)^2))
//   d = s * rsqrt_correction2 + eps
//   p = p * decay - (step_size * m) / d
struct SqrtVLoop {
  // A vector of floats becomes two of doubles.
  template <class D>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT exp_avg, float* HWY_RESTRICT root) const {
    if constexpr (hn::MaxLanes(D()) == 1) {
      HalfVector(d, grad, weight, exp_avg, root);
    } else {
      const hn::Half<D> half;
      for (size_t i = 0; i < hn::Lanes(d); i += hn::Lanes(half)) {
        HalfVector(half, grad + i, weight + i, exp_avg + i, root + i);
      }
    }
  }
  template <class D>
  HWY_INLINE void HalfVector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                             float* HWY_RESTRICT exp_avg, float* HWY_RESTRICT root) const {
    const hn::Rebind<double, D> wide;
    const auto g = hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale));
    const auto m = hn::Add(hn::Mul(hn::Set(d, s.beta1), hn::LoadU(d, exp_avg)),
                           hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const auto a = hn::Mul(hn::Set(wide, s.sqrt_beta2), hn::PromoteTo(wide, hn::LoadU(d, root)));
    const auto b = hn::Mul(hn::Set(wide, s.sqrt_one_minus_beta2), hn::PromoteTo(wide, g));
    const auto sum = hn::Sqrt(hn::Add(hn::Mul(a, a), hn::Mul(b, b)));
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    // Their DemoteTo turns an infinity into the largest float.
    double sums[hn::MaxLanes(wide)];
    float roots[hn::MaxLanes(wide)];
    hn::StoreU(sum, wide, sums);
    for (size_t i = 0; i < hn::MaxLanes(wide); ++i) roots[i] = static_cast<float>(sums[i]);
    const auto r = hn::LoadU(d, roots);
#else
    const auto r = hn::DemoteTo(d, sum);
#endif
    const auto denominator =
        hn::Add(hn::Mul(r, hn::Set(d, s.rsqrt_correction2)), hn::Set(d, s.eps));
    const auto p = hn::Sub(hn::Mul(hn::LoadU(d, weight), hn::Set(d, s.decay)),
                           hn::Div(hn::Mul(hn::Set(d, s.step_size), m), denominator));
    hn::StoreU(p, d, weight);
    hn::StoreU(m, d, exp_avg);
    hn::StoreU(r, d, root);
  }
  SqrtVScalars s;
};

void SqrtVKernel(const SqrtVScalars& scalars, const RuleTile& tile) {
  UpdateTile(SqrtVLoop{scalars}, tile, tile.state.weight, tile.state.field[0], tile.state.field[1]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(SqrtVKernel);

void SqrtV(const SqrtVScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(SqrtVKernel)(scalars, tile);
}

void ReferenceSqrtV(const SqrtVScalars& scalars, const RuleTile& tile) {
  const SqrtVScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float g = grad * s.grad_scale;
    const float m = s.beta1 * state.field[0][i] + s.one_minus_beta1 * g;
    const double a = s.sqrt_beta2 * double{state.field[1][i]};
    const double b = s.sqrt_one_minus_beta2 * double{g};
    const float r = static_cast<float>(std::sqrt(a * a + b * b));
    const float d = r * s.rsqrt_correction2 + s.eps;
    state.weight[i] = state.weight[i] * s.decay - (s.step_size * m) / d;
    state.field[0][i] = m;
    state.field[1][i] = r;
  });
}

SqrtVScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                       const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  SqrtVScalars s;
  s.grad_scale = step.grad_scale;
  s.decay = static_cast<float>(1.0 - lr * group.weight_decay);
  s.beta1 = static_cast<float>(spec.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  s.sqrt_beta2 = std::sqrt(spec.beta2);
  s.sqrt_one_minus_beta2 = std::sqrt(1.0 - spec.beta2);
  s.rsqrt_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
  s.eps = static_cast<float>(spec.eps);
  s.step_size = static_cast<float>(lr / step.bias_correction1);
  return s;
}

constexpr ElementCode<SqrtVScalars> kCode = {ScalarsOf, SqrtV, ReferenceSqrtV};
const RuleRegistration kSqrtV(OptimizerName::kAdamWSqrtV, NewElementRule<kCode>);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
