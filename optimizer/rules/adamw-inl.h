// AdamW's arithmetic (adamw.h) on one vector, for kernel files to include once per instruction
// set: it is the one AdamW, whether it has a pass of its own or is made on the way.

#include "hwy/highway.h"
#include "optimizer/rules/adamw.h"

// Highway's include guard for files that are compiled once per instruction set.
#if defined(EPS_OPTIMIZER_RULES_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_OPTIMIZER_RULES_ADAMW_INL_H_
#undef EPS_OPTIMIZER_RULES_ADAMW_INL_H_
#else
#define EPS_OPTIMIZER_RULES_ADAMW_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

// One vector of the formula in adamw.h. Mul and Add apart, never MulAdd: that is fused on some
// targets only.
template <class D>
HWY_INLINE void AdamWVector(D d, const AdamWScalars& s, const float* HWY_RESTRICT grad,
                            float* HWY_RESTRICT weight, float* HWY_RESTRICT exp_avg,
                            float* HWY_RESTRICT exp_avg_sq) {
  namespace hn = hwy::HWY_NAMESPACE;
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#endif  // EPS_OPTIMIZER_RULES_ADAMW_INL_H_
