#include "optimizer/rules/adamw.h"

#include <cmath>

#include "base/numerics/flush_denormals.h"
#include "gtest/gtest.h"
#include "optimizer/testing/kernel_checks.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

AdamWScalars ScalarsAt(int t) {
  AdamWScalars s;
  const double lr = 1e-3, beta1 = 0.9, beta2 = 0.999;
  s.grad_scale = 1.0f / 4096;
  s.decay = static_cast<float>(1 - lr * 0.01);
  s.beta1 = static_cast<float>(beta1);
  s.one_minus_beta1 = static_cast<float>(1 - beta1);
  s.beta2 = static_cast<float>(beta2);
  s.one_minus_beta2 = static_cast<float>(1 - beta2);
  s.rsqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t)));
  s.eps = 1e-8f;
  s.step_size = static_cast<float>(lr / (1 - std::pow(beta1, t)));
  return s;
}

// Each result against torch.optim.AdamW's formula in double, from the same float inputs. The bounds
// are a few roundings of the terms of each sum; a wrong formula misses them by orders of magnitude.
TEST(AdamW, FollowsTheFormulaInDouble) {
  ScopedFlushDenormals flush;
  Random random;
  constexpr double kUlp = 0x1p-23;
  for (int t = 1; t <= 50; ++t) {
    const AdamWScalars s = ScalarsAt(t);
    RuleArrays before(2, 1, 500, 500, 500);
    RuleArrays after(2, 1, 500, 500, 500);
    before.FillRandomly(&random);
    after.CopyFrom(&before);
    const TileState& state = after.state;
    reference::AdamW(
        s, {1, 500, after.grad(), 500, state.weight, state.field[0], state.field[1], 500});
    const double lr = 1e-3, b1 = 0.9, b2 = 0.999, wd = 0.01, eps = 1e-8;
    for (size_t i = 0; i < 500; ++i) {
      const double g = double{before.grad()[i]} / 4096;
      const double m_old = before.state.field[0][i], v_old = before.state.field[1][i];
      const double m = b1 * m_old + (1 - b1) * g;
      const double v = b2 * v_old + (1 - b2) * g * g;
      const double bc1 = 1 - std::pow(b1, t), bc2 = 1 - std::pow(b2, t);
      const double denominator = std::sqrt(v) / std::sqrt(bc2) + eps;
      const double p_old = double{before.state.weight[i]} * (1 - lr * wd);
      const double p = p_old - (lr / bc1) * m / denominator;
      const double m_terms = std::fabs(b1 * m_old) + std::fabs((1 - b1) * g);
      const double m_bound = 2 * kUlp * m_terms;
      ASSERT_NEAR(state.field[0][i], m, m_bound);
      ASSERT_NEAR(state.field[1][i], v, 3 * kUlp * v);
      const double step_bound = (lr / bc1) * (m_bound + 5 * kUlp * std::fabs(m)) / denominator;
      ASSERT_NEAR(state.weight[i], p, kUlp * (std::fabs(p) + std::fabs(p_old)) + step_bound);
    }
  }
}

// Worked by hand: t = 1, p = 0.5, grad 8, scale 1/8, so g = 1, m = 0.1, v = 0.001, both bias
// corrections cancel, and p = 0.5 * (1 - lr * wd) - lr * 1 / (1 + eps).
TEST(AdamW, TakesTheFirstStepOfTheFormula) {
  for (const Kernel kernel : {Kernel::kBest, Kernel::kReference}) {
    const auto rule = NewUpdateRule(OptimizerSpec(), kernel);
    ASSERT_TRUE(rule.ok()) << rule.status();
    float weight = 0.5f, exp_avg = 0, exp_avg_sq = 0;
    TileState state;
    state.weight = &weight;
    state.field = {&exp_avg, &exp_avg_sq};
    state.ld = 1;
    StepScalars step = ScalarsOfUpdate(OptimizerSpec(), 1);
    step.lr = 2e-3;
    step.grad_scale = 0.125f;
    const float grad = 8.0f;
    GroupScalars group;
    group.weight_decay = 0.1;
    (*rule)->Run(1, 1, &grad, 1, step, group, state);
    EXPECT_NEAR(exp_avg, 0.1, 1e-8);
    EXPECT_NEAR(exp_avg_sq, 0.001, 1e-10);
    EXPECT_NEAR(weight, 0.5 * (1 - 2e-3 * 0.1) - 2e-3, 6e-8);
  }
}

}  // namespace
}  // namespace eps
