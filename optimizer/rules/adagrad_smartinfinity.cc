#include <cmath>

#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/adagrad_smartinfinity.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_ADAGRAD_SMARTINFINITY_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_ADAGRAD_SMARTINFINITY_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct SmartInfinityAdagradScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  float eps = 0;
  float lr = 0;
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_ADAGRAD_SMARTINFINITY_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// AdaGrad as the updater of Smart-Infinity computes it ("Smart-Infinity: Fast Large Language Model
// Training using Near-Storage Processing on a Real System", HPCA 2024). Weight decay is part of the
// accumulated square, but the step takes the gradient without it. Each operation on an element is
// rounded on its own, in this order:
//
//   g = grad * grad_scale
//   u = g + weight_decay * p
//   h = h + u * u
//   p = p - (lr * g) / (sqrt(h) + eps)
struct SmartInfinityAdagradLoop {
  template <class D>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT sum) const {
    const auto p = hn::LoadU(d, weight);
    const auto g = hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale));
    const auto u = hn::Add(g, hn::Mul(hn::Set(d, s.weight_decay), p));
    const auto h = hn::Add(hn::LoadU(d, sum), hn::Mul(u, u));
    const auto denominator = hn::Add(hn::Sqrt(h), hn::Set(d, s.eps));
    hn::StoreU(hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, s.lr), g), denominator)), d, weight);
    hn::StoreU(h, d, sum);
  }
  SmartInfinityAdagradScalars s;
};

void SmartInfinityAdagradKernel(const SmartInfinityAdagradScalars& scalars, const RuleTile& tile) {
  UpdateTile(SmartInfinityAdagradLoop{scalars}, tile, tile.state.weight, tile.state.field[0]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(SmartInfinityAdagradKernel);

void SmartInfinityAdagrad(const SmartInfinityAdagradScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(SmartInfinityAdagradKernel)(scalars, tile);
}

void ReferenceSmartInfinityAdagrad(const SmartInfinityAdagradScalars& scalars,
                                   const RuleTile& tile) {
  const SmartInfinityAdagradScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float p = state.weight[i];
    const float g = grad * s.grad_scale;
    const float u = g + s.weight_decay * p;
    const float h = state.field[0][i] + u * u;
    state.weight[i] = p - (s.lr * g) / (std::sqrt(h) + s.eps);
    state.field[0][i] = h;
  });
}

SmartInfinityAdagradScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                                      const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  SmartInfinityAdagradScalars s;
  s.grad_scale = step.grad_scale;
  s.weight_decay = static_cast<float>(group.weight_decay);
  s.eps = static_cast<float>(spec.eps);
  s.lr = static_cast<float>(lr);
  return s;
}

constexpr ElementCode<SmartInfinityAdagradScalars> kCode = {ScalarsOf, SmartInfinityAdagrad,
                                                            ReferenceSmartInfinityAdagrad};
const RuleRegistration kSmartInfinityAdagrad(OptimizerName::kAdagradSmartInfinity,
                                             NewElementRule<kCode>);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
