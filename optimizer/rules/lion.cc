#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/lion.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_LION_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_LION_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct LionScalars {
  float grad_scale = 1;
  float decay = 1;  // 1 - lr * weight_decay
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float lr = 0;
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_LION_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2), with
// decoupled decay. The step and what it keeps mix the old moment with the gradient, by beta1 and by
// beta2. Each operation on an element is rounded on its own, in this order:
//
//   g = grad * grad_scale
//   c = beta1 * m + one_minus_beta1 * g
//   p = p * decay - lr * sign(c)       sign(c) = c if c is 0 or not a number
//   m = beta2 * m + one_minus_beta2 * g
struct LionLoop {
  template <class D>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT exp_avg) const {
    const auto g = hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale));
    const auto old = hn::LoadU(d, exp_avg);
    const auto c =
        hn::Add(hn::Mul(hn::Set(d, s.beta1), old), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const auto zero = hn::Zero(d);
    const auto sign = hn::IfThenElse(hn::Gt(c, zero), hn::Set(d, 1.0f),
                                     hn::IfThenElse(hn::Lt(c, zero), hn::Set(d, -1.0f), c));
    const auto p = hn::Sub(hn::Mul(hn::LoadU(d, weight), hn::Set(d, s.decay)),
                           hn::Mul(hn::Set(d, s.lr), sign));
    const auto m =
        hn::Add(hn::Mul(hn::Set(d, s.beta2), old), hn::Mul(hn::Set(d, s.one_minus_beta2), g));
    hn::StoreU(p, d, weight);
    hn::StoreU(m, d, exp_avg);
  }
  LionScalars s;
};

void LionKernel(const LionScalars& scalars, const RuleTile& tile) {
  UpdateTile(LionLoop{scalars}, tile, tile.state.weight, tile.state.field[0]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(LionKernel);

void Lion(const LionScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(LionKernel)(scalars, tile);
}

void ReferenceLion(const LionScalars& scalars, const RuleTile& tile) {
  const LionScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float g = grad * s.grad_scale;
    const float old = state.field[0][i];
    const float c = s.beta1 * old + s.one_minus_beta1 * g;
    const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : c;
    state.weight[i] = state.weight[i] * s.decay - s.lr * sign;
    state.field[0][i] = s.beta2 * old + s.one_minus_beta2 * g;
  });
}

LionScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                      const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  LionScalars s;
  s.grad_scale = step.grad_scale;
  s.decay = static_cast<float>(1.0 - lr * group.weight_decay);
  s.beta1 = static_cast<float>(spec.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  s.beta2 = static_cast<float>(spec.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
  s.lr = static_cast<float>(lr);
  return s;
}

constexpr ElementCode<LionScalars> kCode = {ScalarsOf, Lion, ReferenceLion};
const RuleRegistration kLion(OptimizerName::kLion, NewElementRule<kCode>);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
