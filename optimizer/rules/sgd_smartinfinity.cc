#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/sgd_smartinfinity.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_SGD_SMARTINFINITY_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_SGD_SMARTINFINITY_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct SmartInfinitySgdScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  bool has_buffer = false;
  float momentum = 0;
  float one_minus_momentum = 1;
  float lr = 0;
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_SGD_SMARTINFINITY_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// SGD as the updater of Smart-Infinity computes it ("Smart-Infinity: Fast Large Language Model
// Training using Near-Storage Processing on a Real System", HPCA 2024): the momentum buffer is a
// mean, where torch's is a sum, and the decay is part of the gradient. Each operation on an element
// is rounded on its own, in this order:
//
//   g = grad * grad_scale + weight_decay * p
//   b = momentum * b + one_minus_momentum * g
//   p = p - lr * b                     without momentum: p - lr * g
struct SmartInfinitySgdLoop {
  // `momentum_buffer` is absent if there is no momentum.
  template <class D, class... Buffer>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         Buffer... momentum_buffer) const {
    const auto p = hn::LoadU(d, weight);
    const auto g = hn::Add(hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale)),
                           hn::Mul(hn::Set(d, s.weight_decay), p));
    auto b = g;
    if constexpr (sizeof...(momentum_buffer) == 1) {
      float* const buffer = (momentum_buffer, ...);
      b = hn::Add(hn::Mul(hn::Set(d, s.momentum), hn::LoadU(d, buffer)),
                  hn::Mul(hn::Set(d, s.one_minus_momentum), g));
      hn::StoreU(b, d, buffer);
    }
    hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, s.lr), b)), d, weight);
  }
  SmartInfinitySgdScalars s;
};

void SmartInfinitySgdKernel(const SmartInfinitySgdScalars& scalars, const RuleTile& tile) {
  const SmartInfinitySgdLoop loop{scalars};
  if (scalars.has_buffer) {
    UpdateTile(loop, tile, tile.state.weight, tile.state.field[0]);
  } else {
    UpdateTile(loop, tile, tile.state.weight);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(SmartInfinitySgdKernel);

void SmartInfinitySgd(const SmartInfinitySgdScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(SmartInfinitySgdKernel)(scalars, tile);
}

void ReferenceSmartInfinitySgd(const SmartInfinitySgdScalars& scalars, const RuleTile& tile) {
  const SmartInfinitySgdScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float p = state.weight[i];
    float b = grad * s.grad_scale + s.weight_decay * p;
    if (s.has_buffer) {
      b = s.momentum * state.field[0][i] + s.one_minus_momentum * b;
      state.field[0][i] = b;
    }
    state.weight[i] = p - s.lr * b;
  });
}

SmartInfinitySgdScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                                  const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  SmartInfinitySgdScalars s;
  s.grad_scale = step.grad_scale;
  s.weight_decay = static_cast<float>(group.weight_decay);
  s.has_buffer = !StateFields(spec).empty();
  s.momentum = static_cast<float>(spec.momentum);
  s.one_minus_momentum = static_cast<float>(1.0 - spec.momentum);
  s.lr = static_cast<float>(lr);
  return s;
}

constexpr ElementCode<SmartInfinitySgdScalars> kCode = {ScalarsOf, SmartInfinitySgd,
                                                        ReferenceSmartInfinitySgd};
const RuleRegistration kSmartInfinitySgd(OptimizerName::kSgdSmartInfinity, NewElementRule<kCode>);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
