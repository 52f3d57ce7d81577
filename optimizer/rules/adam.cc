#include <cmath>

#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/adam.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_ADAM_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_ADAM_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct AdamScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float rsqrt_correction2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^t)
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_ADAM_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1) as
// torch.optim.Adam has it, with coupled decay: it is part of the gradient, and so of both moments.
// Each operation on an element is rounded on its own, in this order:
//
//   g = grad * grad_scale + weight_decay * p
//   m = beta1 * m + one_minus_beta1 * g
//   v = beta2 * v + (one_minus_beta2 * g) * g
//   d = sqrt(v) * rsqrt_correction2 + eps
//   p = p - (step_size * m) / d
struct AdamLoop {
  template <class D>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT exp_avg, float* HWY_RESTRICT exp_avg_sq) const {
    const auto p = hn::LoadU(d, weight);
    const auto g = hn::Add(hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale)),
                           hn::Mul(hn::Set(d, s.weight_decay), p));
    const auto m = hn::Add(hn::Mul(hn::Set(d, s.beta1), hn::LoadU(d, exp_avg)),
                           hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const auto v = hn::Add(hn::Mul(hn::Set(d, s.beta2), hn::LoadU(d, exp_avg_sq)),
                           hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
    const auto denominator =
        hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, s.rsqrt_correction2)), hn::Set(d, s.eps));
    const auto step = hn::Div(hn::Mul(hn::Set(d, s.step_size), m), denominator);
    hn::StoreU(hn::Sub(p, step), d, weight);
    hn::StoreU(m, d, exp_avg);
    hn::StoreU(v, d, exp_avg_sq);
  }
  AdamScalars s;
};

void AdamKernel(const AdamScalars& scalars, const RuleTile& tile) {
  UpdateTile(AdamLoop{scalars}, tile, tile.state.weight, tile.state.field[0], tile.state.field[1]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(AdamKernel);

void Adam(const AdamScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(AdamKernel)(scalars, tile);
}

void ReferenceAdam(const AdamScalars& scalars, const RuleTile& tile) {
  const AdamScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float p = state.weight[i];
    const float g = grad * s.grad_scale + s.weight_decay * p;
    const float m = s.beta1 * state.field[0][i] + s.one_minus_beta1 * g;
    const float v = s.beta2 * state.field[1][i] + (s.one_minus_beta2 * g) * g;
    const float d = std::sqrt(v) * s.rsqrt_correction2 + s.eps;
    state.weight[i] = p - (s.step_size * m) / d;
    state.field[0][i] = m;
    state.field[1][i] = v;
  });
}

AdamScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                      const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  AdamScalars s;
  s.grad_scale = step.grad_scale;
  s.weight_decay = static_cast<float>(group.weight_decay);
  s.beta1 = static_cast<float>(spec.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  s.beta2 = static_cast<float>(spec.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
  s.rsqrt_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
  s.eps = static_cast<float>(spec.eps);
  s.step_size = static_cast<float>(lr / step.bias_correction1);
  return s;
}

constexpr ElementCode<AdamScalars> kCode = {ScalarsOf, Adam, ReferenceAdam};
const RuleRegistration kAdam(OptimizerName::kAdam, NewElementRule<kCode>);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
