#include "optimizer/update_rule.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::unique_ptr<UpdateRule> AdamWWith(Kernel kernel) {
  auto rule = NewUpdateRule(OptimizerSpec(), kernel);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return std::move(*rule);
}

StepScalars StepAt(uint64_t t) {
  StepScalars step;
  step.lr = 2e-3;
  step.bias_correction1 = 1 - std::pow(0.9, static_cast<double>(t));
  step.bias_correction2 = 1 - std::pow(0.999, static_cast<double>(t));
  step.grad_scale = 0.125f;
  step.update = t;
  return step;
}

struct Weights {
  explicit Weights(size_t n) : weight(n, 0.5f), exp_avg(n), exp_avg_sq(n) {}
  TileState At(size_t offset, size_t ld) {
    TileState state;
    state.weight = weight.data() + offset;
    state.field = {exp_avg.data() + offset, exp_avg_sq.data() + offset};
    state.ld = ld;
    return state;
  }
  std::vector<float> weight, exp_avg, exp_avg_sq;
};

TEST(AdamW, KeepsTorchsStateByTorchsNames) {
  const auto rule = AdamWWith(Kernel::kBest);
  ASSERT_EQ(rule->fields().size(), 2u);
  EXPECT_STREQ(rule->fields()[0].name, "exp_avg");
  EXPECT_STREQ(rule->fields()[1].name, "exp_avg_sq");
}

// Worked by hand: t = 1, p = 0.5, grad 8, scale 1/8, so g = 1, m = 0.1, v = 0.001, both bias
// corrections cancel, and p = 0.5 * (1 - lr * wd) - lr * 1 / (1 + eps).
TEST(AdamW, TakesTheFirstStepOfTheFormula) {
  for (const Kernel kernel : {Kernel::kBest, Kernel::kReference}) {
    Weights w(1);
    const float grad = 8.0f;
    GroupScalars group;
    group.weight_decay = 0.1;
    AdamWWith(kernel)->Run(1, 1, &grad, 1, StepAt(1), group, w.At(0, 1));
    EXPECT_NEAR(w.exp_avg[0], 0.1, 1e-8);
    EXPECT_NEAR(w.exp_avg_sq[0], 0.001, 1e-10);
    EXPECT_NEAR(w.weight[0], 0.5 * (1 - 2e-3 * 0.1) - 2e-3, 6e-8);
  }
}

TEST(AdamW, GivesTheSameBitsHoweverElementsAreGroupedAndWithEitherKernel) {
  constexpr size_t kRows = 40, kCols = 150;
  std::vector<float> grad(kRows * kCols);
  for (size_t i = 0; i < grad.size(); ++i) {
    grad[i] = std::ldexp(static_cast<float>(i % 977) - 488.0f, -static_cast<int>(i % 23));
  }
  GroupScalars group;
  group.weight_decay = 0.01;
  Weights whole(grad.size()), tiled(grad.size());
  for (uint64_t t = 1; t <= 3; ++t) {
    AdamWWith(Kernel::kReference)
        ->Run(kRows, kCols, grad.data(), kCols, StepAt(t), group, whole.At(0, kCols));
    const auto rule = AdamWWith(Kernel::kBest);
    for (size_t row = 0; row < kRows; row += 32) {
      for (size_t col = 0; col < kCols; col += 128) {
        const size_t offset = row * kCols + col;
        rule->Run(static_cast<uint32_t>(std::min<size_t>(32, kRows - row)),
                  static_cast<uint32_t>(std::min<size_t>(128, kCols - col)), grad.data() + offset,
                  kCols, StepAt(t), group, tiled.At(offset, kCols));
      }
    }
  }
  EXPECT_EQ(std::memcmp(whole.weight.data(), tiled.weight.data(), 4 * grad.size()), 0);
  EXPECT_EQ(std::memcmp(whole.exp_avg.data(), tiled.exp_avg.data(), 4 * grad.size()), 0);
  EXPECT_EQ(std::memcmp(whole.exp_avg_sq.data(), tiled.exp_avg_sq.data(), 4 * grad.size()), 0);
}

OptimizerSpec SgdWith(double momentum) {
  OptimizerSpec spec;
  spec.name = OptimizerName::kSgd;
  spec.momentum = momentum;
  return spec;
}

TEST(Sgd, KeepsAMomentumBufferOnlyIfThereIsMomentum) {
  const auto with = *NewUpdateRule(SgdWith(0.9));
  ASSERT_EQ(with->fields().size(), 1u);
  EXPECT_STREQ(with->fields()[0].name, "momentum_buffer");
  EXPECT_TRUE((*NewUpdateRule(SgdWith(0)))->fields().empty());
  EXPECT_EQ(StateFields(SgdWith(0.9)).data(), with->fields().data());
}

// torch.optim.SGD([0.5], lr=2e-3, momentum=0.75, weight_decay=0.5) on gradients 1 and -2, worked by
// hand: the decay is part of the gradient, the first update takes the gradient as it is.
TEST(Sgd, TakesTheFirstTwoStepsOfTorchsFormula) {
  GroupScalars group;
  group.weight_decay = 0.5;
  for (const Kernel kernel : {Kernel::kBest, Kernel::kReference}) {
    Weights plain(1), heavy(1);
    double plain_weight = 0.5, heavy_weight = 0.5, buffer = 0;
    for (const float grad : {8.0f, -16.0f}) {  // times the scale of 1/8
      (*NewUpdateRule(SgdWith(0), kernel))->Run(1, 1, &grad, 1, StepAt(1), group, plain.At(0, 1));
      (*NewUpdateRule(SgdWith(0.75), kernel))
          ->Run(1, 1, &grad, 1, StepAt(1), group, heavy.At(0, 1));
      plain_weight -= 2e-3 * (double{grad} / 8 + 0.5 * plain_weight);
      const double g = double{grad} / 8 + 0.5 * heavy_weight;
      buffer = buffer == 0 ? g : 0.75 * buffer + g;
      heavy_weight -= 2e-3 * buffer;
      EXPECT_NEAR(plain.weight[0], plain_weight, 1e-7);
      EXPECT_NEAR(heavy.exp_avg[0], buffer, 3e-7);
      EXPECT_NEAR(heavy.weight[0], heavy_weight, 1e-7);
    }
    EXPECT_EQ(plain.exp_avg[0], 0.0f);
    EXPECT_EQ(heavy.exp_avg_sq[0], 0.0f);
  }
}

TEST(Denormals, AreZerosOnAThreadWithoutTheMode) {
  const float denormal = 1e-40f;
  for (const Kernel kernel : {Kernel::kBest, Kernel::kReference}) {
    Weights w(1);
    w.exp_avg[0] = 1.2e-38f;
    const float zero = 0.0f;
    AdamWWith(kernel)->Run(1, 1, &zero, 1, StepAt(1), GroupScalars(), w.At(0, 1));
    EXPECT_EQ(w.exp_avg[0], 0.0f);
  }

  SquareSum squares;
  squares.Add(&denormal, 1, 1, 1, 1e30f);
  EXPECT_EQ(squares.Fold(), 0.0);
}

TEST(SquareSum, FoldsSixteenLanesPairwise) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    // Full mantissas with far apart exponents: the sums of their squares depend on the order.
    std::vector<float> x(40);
    uint32_t random = seed;
    for (float& value : x) {
      random = random * 1664525u + 1013904223u;
      value = std::ldexp(static_cast<float>(random >> 8), -static_cast<int>(random >> 5 & 7));
    }
    SquareSum squares;
    squares.Add(x.data(), 2, 20, 20, 3.0f);
    double lanes[16] = {};
    for (size_t r = 0; r < 2; ++r) {
      for (size_t c = 0; c < 20; ++c) {
        const double s = double{3.0f * x[r * 20 + c]};
        lanes[c % 16] += s * s;
      }
    }
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
    }
    EXPECT_EQ(squares.Fold(), lanes[0]) << "seed " << seed;
  }
}

TEST(NewUpdateRule, NamesTheKnownOptimizers) {
  OptimizerSpec spec;
  spec.name = static_cast<OptimizerName>(99);
  const absl::Status status = NewUpdateRule(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("known are adamw and sgd"));
}

}  // namespace
}  // namespace eps
