#include <cmath>

#include "base/job/optimizers.h"
#include "optimizer/rules/element_rule.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/lamb.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_LAMB_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_LAMB_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct LambScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float correction1 = 1;        // 1 / (1 - beta1^t)
  float rsqrt_correction2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float step_size = 0;  // lr * trust ratio
};

// A tile whose steps are wanted: one row of `n` elements.
struct LambSteps {
  size_t n = 0;
  const float* grad = nullptr;
  TileState state;
  float* steps = nullptr;
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_LAMB_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
// 2020, algorithm 2, with the identity for phi). Each operation on an element is rounded on its
// own, in this order:
//
//   g = grad * grad_scale
//   m = beta1 * m + one_minus_beta1 * g
//   v = beta2 * v + (one_minus_beta2 * g) * g
//   d = sqrt(v) * rsqrt_correction2 + eps
//   s = (correction1 * m) / d + weight_decay * p
//   p = p - step_size * s
//
// The trust ratio in step_size is |p| / |s| over the whole tensor, before the update.
template <class V>
struct LambStep {
  V p, m, v, s;
};

template <class D>
HWY_INLINE LambStep<hn::Vec<D>> StepOf(D d, const LambScalars& s, const float* HWY_RESTRICT grad,
                                       const float* HWY_RESTRICT weight,
                                       const float* HWY_RESTRICT exp_avg,
                                       const float* HWY_RESTRICT exp_avg_sq) {
  LambStep<hn::Vec<D>> of;
  of.p = hn::LoadU(d, weight);
  const auto g = hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale));
  of.m = hn::Add(hn::Mul(hn::Set(d, s.beta1), hn::LoadU(d, exp_avg)),
                 hn::Mul(hn::Set(d, s.one_minus_beta1), g));
  of.v = hn::Add(hn::Mul(hn::Set(d, s.beta2), hn::LoadU(d, exp_avg_sq)),
                 hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
  const auto denominator =
      hn::Add(hn::Mul(hn::Sqrt(of.v), hn::Set(d, s.rsqrt_correction2)), hn::Set(d, s.eps));
  of.s = hn::Add(hn::Div(hn::Mul(hn::Set(d, s.correction1), of.m), denominator),
                 hn::Mul(hn::Set(d, s.weight_decay), of.p));
  return of;
}

struct LambLoop {
  template <class D>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         float* HWY_RESTRICT exp_avg, float* HWY_RESTRICT exp_avg_sq) const {
    const auto of = StepOf(d, s, grad, weight, exp_avg, exp_avg_sq);
    hn::StoreU(hn::Sub(of.p, hn::Mul(hn::Set(d, s.step_size), of.s)), d, weight);
    hn::StoreU(of.m, d, exp_avg);
    hn::StoreU(of.v, d, exp_avg_sq);
  }
  LambScalars s;
};

void LambKernel(const LambScalars& scalars, const RuleTile& tile) {
  UpdateTile(LambLoop{scalars}, tile, tile.state.weight, tile.state.field[0], tile.state.field[1]);
}

void LambStepsKernel(const LambScalars& shared, const LambSteps& of) {
  const LambScalars scalars = shared;  // a copy that no store can alias
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  const auto at = [&](auto tag) {
    const auto step = StepOf(tag, scalars, of.grad + i, of.state.weight + i, of.state.field[0] + i,
                             of.state.field[1] + i);
    hn::StoreU(step.s, tag, of.steps + i);
  };
  for (; i + lanes <= of.n; i += lanes) at(d);
  for (; i < of.n; ++i) at(d1);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(LambKernel);
HWY_EXPORT(LambStepsKernel);

void Lamb(const LambScalars& scalars, const RuleTile& tile) {
  HWY_DYNAMIC_DISPATCH(LambKernel)(scalars, tile);
}

void Steps(const LambScalars& scalars, const LambSteps& of) {
  HWY_DYNAMIC_DISPATCH(LambStepsKernel)(scalars, of);
}

// The new moments of an element, and its step.
struct ReferenceStep {
  float m, v, s;
};

ReferenceStep ReferenceStepOf(const LambScalars& s, float grad, float p, float exp_avg,
                              float exp_avg_sq) {
  const float g = grad * s.grad_scale;
  const float m = s.beta1 * exp_avg + s.one_minus_beta1 * g;
  const float v = s.beta2 * exp_avg_sq + (s.one_minus_beta2 * g) * g;
  const float d = std::sqrt(v) * s.rsqrt_correction2 + s.eps;
  return {m, v, (s.correction1 * m) / d + s.weight_decay * p};
}

void ReferenceLamb(const LambScalars& scalars, const RuleTile& tile) {
  const LambScalars s = scalars;
  const TileState& state = tile.state;
  ForEachElement(tile, [&](float grad, size_t i) {
    const ReferenceStep of =
        ReferenceStepOf(s, grad, state.weight[i], state.field[0][i], state.field[1][i]);
    state.weight[i] = state.weight[i] - s.step_size * of.s;
    state.field[0][i] = of.m;
    state.field[1][i] = of.v;
  });
}

void ReferenceSteps(const LambScalars& s, const LambSteps& of) {
  for (size_t i = 0; i < of.n; ++i) {
    of.steps[i] = ReferenceStepOf(s, of.grad[i], of.state.weight[i], of.state.field[0][i],
                                  of.state.field[1][i])
                      .s;
  }
}

LambScalars ScalarsOf(const OptimizerSpec& spec, const StepScalars& step,
                      const GroupScalars& group) {
  LambScalars s;
  s.grad_scale = step.grad_scale;
  s.weight_decay = static_cast<float>(group.weight_decay);
  s.beta1 = static_cast<float>(spec.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  s.beta2 = static_cast<float>(spec.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
  s.correction1 = static_cast<float>(1.0 / step.bias_correction1);
  s.rsqrt_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
  s.eps = static_cast<float>(spec.eps);
  s.step_size = static_cast<float>(step.lr * group.lr_multiplier * group.trust_ratio);
  return s;
}

constexpr ElementCode<LambScalars> kCode = {ScalarsOf, Lamb, ReferenceLamb};

// Runs one of the two loops over steps.
class PreparedLambSteps final : public PreparedSteps {
 public:
  PreparedLambSteps(const LambScalars& scalars, Kernel kernel)
      : scalars_(scalars), run_(kernel == Kernel::kReference ? ReferenceSteps : Steps) {}

  void Run(size_t n, const float* grad, const TileState& state, float* steps) const override {
    run_(scalars_, {n, grad, state, steps});
  }

 private:
  const LambScalars scalars_;
  void (*const run_)(const LambScalars& scalars, const LambSteps& of);
};

// The element-wise part of LAMB: its caller makes the trust ratios.
class LambRule final : public UpdateRule {
 public:
  LambRule(const OptimizerSpec& spec, Kernel kernel)
      : spec_(spec), kernel_(kernel), elements_(kCode, spec, kernel) {}

  void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld, const StepScalars& step,
           const GroupScalars& group, const TileState& state) const override {
    elements_.Run(rows, cols, grad, grad_ld, step, group, state);
  }
  std::unique_ptr<const PreparedUpdate> Prepare(const StepScalars& step,
                                                const GroupScalars& group) const override {
    return elements_.Prepare(step, group);
  }
  std::unique_ptr<const PreparedSteps> PrepareSteps(const StepScalars& step,
                                                    const GroupScalars& group) const override {
    return std::make_unique<PreparedLambSteps>(ScalarsOf(spec_, step, group), kernel_);
  }

 private:
  const OptimizerSpec spec_;
  const Kernel kernel_;
  const ElementRule<LambScalars> elements_;
};

absl::StatusOr<std::unique_ptr<UpdateRule>> NewLambRule(const OptimizerSpec& spec, Kernel kernel) {
  return std::make_unique<LambRule>(spec, kernel);
}

const RuleRegistration kLamb(OptimizerName::kLamb, NewLambRule);

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
