// Each rule's scalar reference against its published formula in double, from the same floats.

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/job/optimizers.h"
#include "gtest/gtest.h"
#include "optimizer/testing/kernel_checks.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

constexpr double kUlp = 0x1p-23;
constexpr size_t kElements = 2000;

// The trust ratio of the optimizers that adapt; a power of two.
constexpr double kTrust = 4;

// One value of an exact update, and the sum of the magnitudes that its roundings refer to: larger
// than the value where terms cancel.
struct Exact {
  double value = 0;
  double terms = 0;
};

// An element before an update, and the numbers of the update.
struct Before {
  double g;  // the scaled gradient
  double p;
  std::array<double, 2> field;
  double lr;
  double decay;
  double t;
};

// An element after an update. `is_unsure` if rounding may decide a sign.
struct After {
  Exact weight;
  std::array<Exact, 2> field;
  bool is_unsure = false;
};

After Adam(const OptimizerSpec& o, const Before& x, bool coupled, bool root) {
  const double g = coupled ? x.g + x.decay * x.p : x.g;
  const double g_terms = std::fabs(x.g) + (coupled ? std::fabs(x.decay * x.p) : 0);
  After after;
  after.field[0].value = o.beta1 * x.field[0] + (1 - o.beta1) * g;
  after.field[0].terms = std::fabs(o.beta1 * x.field[0]) + (1 - o.beta1) * g_terms;
  const double v_old = root ? x.field[1] * x.field[1] : x.field[1];
  const double v = o.beta2 * v_old + (1 - o.beta2) * g * g;
  const double v_terms = o.beta2 * v_old + (1 - o.beta2) * g_terms * g_terms;
  after.field[1] = root ? Exact{std::sqrt(v), std::sqrt(v)} : Exact{v, v_terms};
  const double rate = x.lr / (1 - std::pow(o.beta1, x.t));
  const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(o.beta2, x.t)) + o.eps;
  const double p = coupled ? x.p : x.p * (1 - x.lr * x.decay);
  const double m = after.field[0].value;
  after.weight.value = p - rate * m / denominator;
  after.weight.terms =
      std::fabs(p) + rate * (after.field[0].terms + std::fabs(m) * v_terms / v) / denominator;
  return after;
}

After Sgd(const OptimizerSpec& o, const Before& x, bool torch) {
  const double g = x.g + x.decay * x.p;
  const double g_terms = std::fabs(x.g) + std::fabs(x.decay * x.p);
  const double share = torch ? 1 - o.dampening : 1 - o.momentum;
  After after;
  Exact& b = after.field[0];
  b.value = o.momentum * x.field[0] + share * g;
  b.terms = std::fabs(o.momentum * x.field[0]) + share * g_terms;
  if (torch && x.t == 1) b = {g, g_terms};
  if (o.momentum == 0) b = {g, g_terms};
  Exact step = b;
  if (o.nesterov) step = {g + o.momentum * b.value, g_terms + o.momentum * b.terms};
  after.weight = {x.p - x.lr * step.value, std::fabs(x.p) + x.lr * step.terms};
  return after;
}

After Adagrad(const OptimizerSpec& o, const Before& x, bool torch) {
  const double g = x.g + x.decay * x.p;
  const double g_terms = std::fabs(x.g) + std::fabs(x.decay * x.p);
  const double numerator = torch ? g : x.g;
  const double rate = x.lr / (1 + (x.t - 1) * o.lr_decay);
  After after;
  after.field[0] = {x.field[0] + g * g, x.field[0] + g_terms * g_terms};
  const Exact& h = after.field[0];
  const double denominator = std::sqrt(h.value) + o.eps;
  after.weight = {
      x.p - rate * numerator / denominator,
      std::fabs(x.p) + rate * (g_terms + std::fabs(g) * h.terms / h.value) / denominator};
  return after;
}

After Lion(const OptimizerSpec& o, const Before& x) {
  const double c = o.beta1 * x.field[0] + (1 - o.beta1) * x.g;
  const double c_terms = std::fabs(o.beta1 * x.field[0]) + std::fabs((1 - o.beta1) * x.g);
  const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
  After after;
  after.is_unsure = std::fabs(c) < 4 * kUlp * c_terms;
  // Algorithm 2 of the paper.
  after.weight.value = x.p - x.lr * (sign + x.decay * x.p);
  after.weight.terms = std::fabs(x.p) + x.lr;
  after.field[0].value = o.beta2 * x.field[0] + (1 - o.beta2) * x.g;
  after.field[0].terms = std::fabs(o.beta2 * x.field[0]) + std::fabs((1 - o.beta2) * x.g);
  return after;
}

// With kTrust in place of the quotient of norms.
After Lamb(const OptimizerSpec& o, const Before& x) {
  After after = Adam(o, x, /*coupled=*/false, /*root=*/false);
  const Exact& m = after.field[0];
  const Exact& v = after.field[1];
  const double denominator = std::sqrt(v.value) / std::sqrt(1 - std::pow(o.beta2, x.t)) + o.eps;
  const double correction = 1 / (1 - std::pow(o.beta1, x.t));
  const double step = correction * m.value / denominator + x.decay * x.p;
  const double step_terms =
      correction * (m.terms + std::fabs(m.value) * v.terms / v.value) / denominator +
      std::fabs(x.decay * x.p);
  const double rate = x.lr * kTrust;
  after.weight = {x.p - rate * step, std::fabs(x.p) + rate * step_terms};
  return after;
}

After Formula(const OptimizerSpec& o, const Before& x) {
  switch (o.name) {
    case OptimizerName::kAdamW:
      return Adam(o, x, /*coupled=*/false, /*root=*/false);
    case OptimizerName::kSgd:
      return Sgd(o, x, /*torch=*/true);
    case OptimizerName::kAdam:
      return Adam(o, x, /*coupled=*/true, /*root=*/false);
    case OptimizerName::kAdagrad:
      return Adagrad(o, x, /*torch=*/true);
    case OptimizerName::kLion:
      return Lion(o, x);
    case OptimizerName::kAdamWSqrtV:
      return Adam(o, x, /*coupled=*/false, /*root=*/true);
    case OptimizerName::kSgdSmartInfinity:
      return Sgd(o, x, /*torch=*/false);
    case OptimizerName::kAdagradSmartInfinity:
      return Adagrad(o, x, /*torch=*/false);
    case OptimizerName::kLamb:
      return Lamb(o, x);
    case OptimizerName::kPlugin:
      break;  // has a formula of its own
  }
  return {};
}

OptimizerSpec DefaultSpec(OptimizerName name) {
  OptimizerSpec spec;
  static_cast<OptimizerSettings&>(spec) = DefaultsOf(name);
  return spec;
}

// The defaults of each optimizer, and each with other values for all parameters.
std::vector<OptimizerSpec> Specs() {
  std::vector<OptimizerSpec> specs;
  for (const OptimizerRow& row : Optimizers()) {
    OptimizerSpec spec = DefaultSpec(row.name);
    specs.push_back(spec);
    double value = 0.75;
    for (const OptimizerParameter* parameter : row.parameters) {
      for (const OptimizerNumber& number : parameter->numbers) {
        spec.*number.value = value;
        value -= 0.125;
      }
    }
    specs.push_back(spec);
  }
  OptimizerSpec nesterov = DefaultSpec(OptimizerName::kSgd);
  nesterov.momentum = 0.875;
  nesterov.nesterov = true;
  specs.push_back(nesterov);
  return specs;
}

// The largest errors of weights and of fields, in units of the last place of their terms.
struct Errors {
  double weight = 0;
  double field = 0;
  size_t unsure = 0;
};

double ErrorOf(float found, const Exact& exact) {
  return std::fabs(double{found} - exact.value) / (kUlp * exact.terms);
}

// Keeps the larger one; a NaN is the largest.
void Raise(double error, double* largest) {
  if (!std::isnan(*largest) && !(error <= *largest)) *largest = error;
}

// Makes update `t` of random elements.
Errors ErrorsOfUpdate(const OptimizerSpec& spec, uint64_t t, Random* random) {
  const auto rule = NewUpdateRule(spec, Kernel::kReference);
  EXPECT_TRUE(rule.ok()) << rule.status();
  const size_t fields = StateFields(spec).size();
  RuleArrays before(fields, 1, kElements, kElements, kElements);
  RuleArrays after(fields, 1, kElements, kElements, kElements);
  FillRandomly(spec, random, &before);
  for (size_t f = 0; t == 1 && f < fields; ++f) {
    std::fill_n(before.state.field[f], kElements, 0.0f);
  }
  after.CopyFrom(&before);
  StepScalars step = ScalarsOfUpdate(spec, t);
  step.lr = 0.0078125;
  GroupScalars group;
  group.weight_decay = 0.375;
  group.lr_multiplier = 0.5;
  group.trust_ratio = kTrust;
  after.Run(**rule, step, group);
  Errors errors;
  for (size_t i = 0; i < kElements; ++i) {
    Before x = {double{before.grad()[i]} / 4096, before.state.weight[i], {},
                step.lr * group.lr_multiplier,   group.weight_decay,     static_cast<double>(t)};
    for (size_t f = 0; f < fields; ++f) x.field[f] = before.state.field[f][i];
    const After exact = Formula(spec, x);
    errors.unsure += exact.is_unsure;
    if (exact.is_unsure) continue;
    Raise(ErrorOf(after.state.weight[i], exact.weight), &errors.weight);
    for (size_t f = 0; f < fields; ++f) {
      Raise(ErrorOf(after.state.field[f][i], exact.field[f]), &errors.field);
    }
  }
  return errors;
}

// Nothing but roundings separates the two: a wrong formula is off by thousands of units.
TEST(Formulas, OneUpdateIsExactButForRoundings) {
  Random random;
  for (const OptimizerSpec& spec : Specs()) {
    for (const uint64_t t : {1, 2, 3, 10, 100, 5000}) {
      SCOPED_TRACE(testing::Message() << NameOf(spec.name) << ", update " << t << ", momentum "
                                      << spec.momentum << ", nesterov " << spec.nesterov);
      const Errors errors = ErrorsOfUpdate(spec, t, &random);
      EXPECT_LE(errors.weight, 2);
      EXPECT_LE(errors.field, 4);
      EXPECT_LE(errors.unsure, kElements / 100);
    }
  }
}

// The state of one element, for updates that are worked by hand.
class OneWeight {
 public:
  OneWeight(const OptimizerSpec& spec, Kernel kernel)
      : spec_(spec), rule_(*NewUpdateRule(spec, kernel)) {
    arrays_.state.weight[0] = 0.5f;
    arrays_.state.field[0][0] = arrays_.state.field[1][0] = 0;
  }
  void Update(float grad) {
    StepScalars step = ScalarsOfUpdate(spec_, ++t_);
    step.lr = 0.25;
    step.grad_scale = 1;
    GroupScalars group;
    group.weight_decay = 0.5;
    arrays_.grad()[0] = grad;
    arrays_.Run(*rule_, step, group);
  }
  float weight() const { return arrays_.state.weight[0]; }
  float field() const { return arrays_.state.field[0][0]; }

 private:
  const OptimizerSpec spec_;
  const std::unique_ptr<UpdateRule> rule_;
  RuleArrays arrays_{2, 1, 1, 1, 1};
  uint64_t t_ = 0;
};

constexpr Kernel kKernels[] = {Kernel::kBest, Kernel::kReference};

// Every number is a sum of few powers of two, so that floats hold it exactly.
TEST(Formulas, SgdStartsUndampenedAsTorchDoes) {
  OptimizerSpec spec = DefaultSpec(OptimizerName::kSgd);
  spec.momentum = 0.5;
  spec.dampening = 0.75;
  for (const Kernel kernel : kKernels) {
    OneWeight one(spec, kernel);
    one.Update(1);  // g = 1 + 0.5 * 0.5
    EXPECT_EQ(one.field(), 1.25f);
    EXPECT_EQ(one.weight(), 0.5f - 0.25f * 1.25f);  // 0.1875
    one.Update(-2);                                 // g = -2 + 0.09375
    EXPECT_EQ(one.field(), 0.5f * 1.25f + 0.25f * -1.90625f);
    EXPECT_EQ(one.weight(), 0.1875f - 0.25f * 0.1484375f);
  }
}

TEST(Formulas, NesterovAddsTheGradientOnceMore) {
  OptimizerSpec spec = DefaultSpec(OptimizerName::kSgd);
  spec.momentum = 0.5;
  spec.nesterov = true;
  for (const Kernel kernel : kKernels) {
    OneWeight one(spec, kernel);
    one.Update(1);  // b = g = 1.25, the step is g + b / 2
    EXPECT_EQ(one.field(), 1.25f);
    EXPECT_EQ(one.weight(), 0.5f - 0.25f * 1.875f);
  }
}

TEST(Formulas, SmartInfinitysMomentumIsAMean) {
  OptimizerSpec spec = DefaultSpec(OptimizerName::kSgdSmartInfinity);
  spec.momentum = 0.75;
  for (const Kernel kernel : kKernels) {
    OneWeight one(spec, kernel);
    one.Update(1);
    EXPECT_EQ(one.field(), 0.25f * 1.25f);
    EXPECT_EQ(one.weight(), 0.5f - 0.25f * 0.3125f);
  }
}

TEST(Formulas, AdagradsRateDecaysFromTheSecondUpdate) {
  OptimizerSpec spec = DefaultSpec(OptimizerName::kAdagrad);
  spec.lr_decay = 1;
  for (const Kernel kernel : kKernels) {
    OneWeight one(spec, kernel);
    one.Update(1);  // g = 1.25, sum = 1.25^2
    EXPECT_EQ(one.field(), 1.5625f);
    EXPECT_EQ(one.weight(), 0.25f);  // a first step has the size of the rate
    one.Update(1.625f);              // g = 1.75, sum = 4.625, rate 1/8
    EXPECT_EQ(one.field(), 4.625f);
    EXPECT_NEAR(one.weight(), 0.25 - 0.125 * 1.75 / std::sqrt(4.625), 3e-8);
  }
}

TEST(Formulas, SmartInfinitysAdagradStepsWithoutDecay) {
  for (const Kernel kernel : kKernels) {
    OneWeight one(DefaultSpec(OptimizerName::kAdagradSmartInfinity), kernel);
    one.Update(1);
    EXPECT_EQ(one.field(), 1.5625f);
    EXPECT_EQ(one.weight(), 0.5f - 0.25f / 1.25f);
  }
}

TEST(Formulas, LionStepsByTheSign) {
  OptimizerSpec spec = DefaultSpec(OptimizerName::kLion);
  spec.beta1 = 0.75;
  spec.beta2 = 0.5;
  for (const Kernel kernel : kKernels) {
    OneWeight one(spec, kernel);
    one.Update(-8);
    EXPECT_EQ(one.field(), -4);
    EXPECT_EQ(one.weight(), 0.5f * 0.875f + 0.25f);  // 0.6875
    one.Update(8);                                   // -4 * 0.75 + 8 * 0.25 < 0
    EXPECT_EQ(one.field(), 2);
    EXPECT_EQ(one.weight(), 0.6875f * 0.875f + 0.25f);
    one.Update(-6);  // the mixture is 0: no step but decay
    EXPECT_EQ(one.field(), -2);
    EXPECT_EQ(one.weight(), (0.6875f * 0.875f + 0.25f) * 0.875f);
  }
}

TEST(Formulas, TheRootKeepsTinyGradients) {
  for (const Kernel kernel : kKernels) {
    OptimizerSpec spec = DefaultSpec(OptimizerName::kAdamWSqrtV);
    RuleArrays arrays(2, 1, 1, 1, 1);
    arrays.state.weight[0] = 0.5f;
    arrays.state.field[0][0] = arrays.state.field[1][0] = 0;
    arrays.grad()[0] = 1e-25f;  // its square is below the smallest float
    StepScalars step = ScalarsOfUpdate(spec, 1);
    step.grad_scale = 1;
    arrays.Run(**NewUpdateRule(spec, kernel), step, GroupScalars());
    EXPECT_NEAR(arrays.state.field[1][0], std::sqrt(0.001) * 1e-25, 1e-33);
  }
}

}  // namespace
}  // namespace eps
