#include <cmath>
#include <memory>

#include "gtest/gtest.h"
#include "optimizer/testing/kernel_checks.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

OptimizerSpec SgdWith(double momentum) {
  OptimizerSpec spec;
  spec.name = OptimizerName::kSgd;
  spec.momentum = momentum;
  return spec;
}

// torch.optim.SGD(momentum=0.9, weight_decay=0.01) in double, several updates from zeros: the first
// of them must give torch's b = g. Each bound is one rounding per operation.
TEST(Sgd, FollowsTorchsFormulaInDouble) {
  Random random;
  constexpr double kUlp = 0x1p-23;
  const double lr = 0.1f, momentum = 0.9f, decay = 0.01f;  // as floats, so that bounds are tight
  const auto rule = NewUpdateRule(SgdWith(momentum), Kernel::kReference);
  ASSERT_TRUE(rule.ok()) << rule.status();
  StepScalars step = ScalarsOfUpdate(SgdWith(momentum), 1);
  step.lr = lr;
  GroupScalars group;
  group.weight_decay = decay;
  RuleArrays arrays(1, 1, 500, 500, 500);
  arrays.FillRandomly(&random);
  for (size_t i = 0; i < 500; ++i) arrays.state.field[0][i] = 0;
  for (int t = 1; t <= 5; ++t) {
    for (size_t i = 0; i < 500; ++i) arrays.grad()[i] = 1000 * random.Wide();
    RuleArrays before(1, 1, 500, 500, 500);
    before.CopyFrom(&arrays);
    arrays.Run(**rule, step, group);
    for (size_t i = 0; i < 500; ++i) {
      const double p_old = before.state.weight[i], scaled = double{before.grad()[i]} / 4096;
      const double g = scaled + decay * p_old;
      const double b_old = before.state.field[0][i];
      const double b = t == 1 ? g : momentum * b_old + g;
      const double p = p_old - lr * b;
      const double terms = std::fabs(scaled) + std::fabs(decay * p_old) + std::fabs(0.9 * b_old);
      ASSERT_NEAR(arrays.state.field[0][i], b, 2 * kUlp * terms) << "update " << t;
      ASSERT_NEAR(arrays.state.weight[i], p, kUlp * (std::fabs(p) + 3 * lr * terms));
    }
  }
}

// torch.optim.SGD([0.5], lr=2e-3, momentum=0.75, weight_decay=0.5) on gradients 1 and -2, worked by
// hand: the decay is part of the gradient, the first update takes the gradient as it is.
TEST(Sgd, TakesTwoStepsOfTorchsFormula) {
  GroupScalars group;
  group.weight_decay = 0.5;
  StepScalars step;
  step.lr = 2e-3;
  step.grad_scale = 0.125f;
  for (const Kernel kernel : {Kernel::kBest, Kernel::kReference}) {
    RuleArrays plain(0, 1, 1, 1, 1);
    RuleArrays heavy(1, 1, 1, 1, 1);
    double plain_weight = 0.5, heavy_weight = 0.5, buffer = 0;
    plain.state.weight[0] = heavy.state.weight[0] = 0.5f;
    for (const float grad : {8.0f, -16.0f}) {  // times the scale of 1/8
      plain.grad()[0] = heavy.grad()[0] = grad;
      plain.Run(**NewUpdateRule(SgdWith(0), kernel), step, group);
      heavy.Run(**NewUpdateRule(SgdWith(0.75), kernel), step, group);
      plain_weight -= 2e-3 * (double{grad} / 8 + 0.5 * plain_weight);
      const double g = double{grad} / 8 + 0.5 * heavy_weight;
      buffer = buffer == 0 ? g : 0.75 * buffer + g;
      heavy_weight -= 2e-3 * buffer;
      EXPECT_NEAR(plain.state.weight[0], plain_weight, 1e-7);
      EXPECT_NEAR(heavy.state.field[0][0], buffer, 3e-7);
      EXPECT_NEAR(heavy.state.weight[0], heavy_weight, 1e-7);
    }
  }
}

}  // namespace
}  // namespace eps
