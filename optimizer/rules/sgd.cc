#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/sgd.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_SGD_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_SGD_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct SgdScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  bool has_buffer = false;
  bool nesterov = false;
  float momentum = 0;
  float one_minus_dampening = 1;  // 1 in the first update
  float lr = 0;
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_SGD_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// SGD with the formula of torch.optim.SGD and coupled decay (part of the gradient); its momentum is
// that of Sutskever et al., "On the importance of initialization and momentum in deep learning",
// 2013. Each operation on an element is rounded on its own, in this order:
//
//   g = grad * grad_scale + weight_decay * p
//   b = momentum * b + one_minus_dampening * g
//   u = b                              Nesterov: g + momentum * b; without momentum: g
//   p = p - lr * u
//
// torch begins with b = g; a b of zeros and no dampening give the same.
template <bool kNesterov>
struct SgdLoop {
  // `momentum_buffer` is absent if there is no momentum.
  template <class D, class... Buffer>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         Buffer... momentum_buffer) const {
    const auto p = hn::LoadU(d, weight);
    const auto g = hn::Add(hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale)),
                           hn::Mul(hn::Set(d, s.weight_decay), p));
    auto u = g;
    if constexpr (sizeof...(momentum_buffer) == 1) {
      float* const buffer = (momentum_buffer, ...);
      const auto momentum = hn::Set(d, s.momentum);
      u = hn::Add(hn::Mul(momentum, hn::LoadU(d, buffer)),
                  hn::Mul(hn::Set(d, s.one_minus_dampening), g));
      hn::StoreU(u, d, buffer);
      if constexpr (kNesterov) u = hn::Add(g, hn::Mul(momentum, u));
    }
    hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, s.lr), u)), d, weight);
  }
  SgdScalars s;
};

void SgdKernel(const SgdScalars& scalars, const RuleTile& tile) {
  const TileState& state = tile.state;
  const auto update = [&](const auto& loop, auto... buffer)
                          HWY_ATTR { UpdateTile(loop, tile, state.weight, buffer...); };
  if (!scalars.has_buffer) {
    update(SgdLoop<false>{scalars});
  } else if (scalars.nesterov) {
    update(SgdLoop<true>{scalars}, state.field[0]);
  } else {
    update(SgdLoop<false>{scalars}, state.field[0]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(SgdKernel);

void Sgd(const SgdScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(SgdKernel)(scalars, tile);
}

void ReferenceSgd(const SgdScalars& scalars, const RuleTile& tile) {
  const SgdScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float p = state.weight[i];
    const float g = grad * s.grad_scale + s.weight_decay * p;
    float u = g;
    if (s.has_buffer) {
      u = s.momentum * state.field[0][i] + s.one_minus_dampening * g;
      state.field[0][i] = u;
      if (s.nesterov) u = g + s.momentum * u;
    }
    state.weight[i] = p - s.lr * u;
  });
}

SgdScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                     const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  SgdScalars s;
  s.grad_scale = step.grad_scale;
  s.weight_decay = static_cast<float>(group.weight_decay);
  s.has_buffer = !StateFields(spec).empty();
  s.nesterov = spec.nesterov;
  s.momentum = static_cast<float>(spec.momentum);
  s.one_minus_dampening = static_cast<float>(step.update == 1 ? 1.0 : 1.0 - spec.dampening);
  s.lr = static_cast<float>(lr);
  return s;
}

constexpr ElementCode<SgdScalars> kCode = {ScalarsOf, Sgd, ReferenceSgd};
const RuleRegistration kSgd(OptimizerName::kSgd, NewElementRule<kCode>);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
