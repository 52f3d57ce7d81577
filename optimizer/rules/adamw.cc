#include "optimizer/rules/adamw.h"

#include <cmath>

#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/adamw.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The formula in adamw.h. Mul and Add apart, never MulAdd: that is fused on some targets only.
struct AdamWLoop {
  template <class D>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT exp_avg, float* HWY_RESTRICT exp_avg_sq) const {
    const auto g = hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale));
    const auto m = hn::Add(hn::Mul(hn::Set(d, s.beta1), hn::LoadU(d, exp_avg)),
                           hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const auto v = hn::Add(hn::Mul(hn::Set(d, s.beta2), hn::LoadU(d, exp_avg_sq)),
                           hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
    const auto denominator =
        hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, s.rsqrt_correction2)), hn::Set(d, s.eps));
    const auto p = hn::Sub(hn::Mul(hn::LoadU(d, weight), hn::Set(d, s.decay)),
                           hn::Div(hn::Mul(hn::Set(d, s.step_size), m), denominator));
    hn::StoreU(p, d, weight);
    hn::StoreU(m, d, exp_avg);
    hn::StoreU(v, d, exp_avg_sq);
  }
  AdamWScalars s;
};

void AdamWKernel(const AdamWScalars& scalars, const RuleTile& tile) {
  UpdateTile(AdamWLoop{scalars}, tile, tile.state.weight, tile.state.field[0], tile.state.field[1]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(AdamWKernel);

namespace {

void RunBest(const AdamWScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(AdamWKernel)(scalars, tile);
}

void RunReference(const AdamWScalars& scalars, const RuleTile& tile) {
  const AdamWScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const float g = grad * s.grad_scale;
    const float m = s.beta1 * state.field[0][i] + s.one_minus_beta1 * g;
    const float v = s.beta2 * state.field[1][i] + (s.one_minus_beta2 * g) * g;
    const float d = std::sqrt(v) * s.rsqrt_correction2 + s.eps;
    state.weight[i] = state.weight[i] * s.decay - (s.step_size * m) / d;
    state.field[0][i] = m;
    state.field[1][i] = v;
  });
}

RuleTile RuleTileOf(const AdamWTile& tile) {
  RuleTile result;
  result.rows = tile.rows;
  result.cols = tile.cols;
  result.grad = tile.grad;
  result.grad_ld = tile.grad_ld;
  result.state.weight = tile.weight;
  result.state.field = {tile.exp_avg, tile.exp_avg_sq};
  result.state.ld = tile.ld;
  return result;
}

AdamWScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                       const GroupScalars& group) {
  const double lr = step.lr * group.lr_multiplier;
  AdamWScalars s;
  s.grad_scale = step.grad_scale;
  s.decay = static_cast<float>(1.0 - lr * group.weight_decay);
  s.beta1 = static_cast<float>(spec.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  s.beta2 = static_cast<float>(spec.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
  s.rsqrt_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
  s.eps = static_cast<float>(spec.eps);
  s.step_size = static_cast<float>(lr / step.bias_correction1);
  return s;
}

constexpr ElementCode<AdamWScalars> kCode = {ScalarsOf, RunBest, RunReference};
const RuleRegistration kAdamW(OptimizerName::kAdamW, NewElementRule<kCode>);

}  // namespace

void AdamW(const AdamWScalars& scalars, const AdamWTile& tile) {
  RunBest(scalars, RuleTileOf(tile));
}

void reference::AdamW(const AdamWScalars& scalars, const AdamWTile& tile) {
  RunReference(scalars, RuleTileOf(tile));
}

}  // namespace eps
#endif  // HWY_ONCE
