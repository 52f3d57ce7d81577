#include <cmath>

#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/adagrad.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_ADAGRAD_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_ADAGRAD_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct AdagradScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  float eps = 0;
  float lr = 0;  // lr / (1 + (t - 1) * lr_decay)
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_ADAGRAD_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// AdaGrad (Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and
// Stochastic Optimization", 2011, with a diagonal matrix) as torch.optim.Adagrad has it, with
// coupled decay and sums that begin at zero. Each operation on an element is rounded on its own, in
// this order:
//
//   g = grad * grad_scale + weight_decay * p
//   h = h + g * g
//   p = p - (lr * g) / (sqrt(h) + eps)
struct AdagradLoop {
  template <class D>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT sum) const {
    const auto p = hn::LoadU(d, weight);
    const auto g = hn::Add(hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale)),
                           hn::Mul(hn::Set(d, s.weight_decay), p));
    const auto h = hn::Add(hn::LoadU(d, sum), hn::Mul(g, g));
    const auto denominator = hn::Add(hn::Sqrt(h), hn::Set(d, s.eps));
    hn::StoreU(hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, s.lr), g), denominator)), d, weight);
    hn::StoreU(h, d, sum);
  }
  AdagradScalars s;
};

void AdagradKernel(const AdagradScalars& scalars, const RuleTile& tile) {
  UpdateTile(AdagradLoop{scalars}, tile, tile.state.weight, tile.state.field[0]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(AdagradKernel);

void Adagrad(const AdagradScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(AdagradKernel)(scalars, tile);
}

void ReferenceAdagrad(const AdagradScalars& scalars, const RuleTile& tile) {
  const AdagradScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float p = state.weight[i];
    const float g = grad * s.grad_scale + s.weight_decay * p;
    const float h = state.field[0][i] + g * g;
    state.weight[i] = p - (s.lr * g) / (std::sqrt(h) + s.eps);
    state.field[0][i] = h;
  });
}

AdagradScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                         const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  AdagradScalars s;
  s.grad_scale = step.grad_scale;
  s.weight_decay = static_cast<float>(group.weight_decay);
  s.eps = static_cast<float>(spec.eps);
  const double updates_before = static_cast<double>(step.update) - 1;
  s.lr = static_cast<float>(lr / (1.0 + updates_before * spec.lr_decay));
  return s;
}

constexpr ElementCode<AdagradScalars> kCode = {ScalarsOf, Adagrad, ReferenceAdagrad};
const RuleRegistration kAdagrad(OptimizerName::kAdagrad, NewElementRule<kCode>);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
