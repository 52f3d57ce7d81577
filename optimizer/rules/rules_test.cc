// Each rule against its scalar reference, on every instruction set of this machine.

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/job/optimizers.h"
#include "base/numerics/flush_denormals.h"
#include "gtest/gtest.h"
#include "optimizer/testing/kernel_checks.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

constexpr size_t kMaxLength = 70;

// The defaults of each optimizer, each with one half for every parameter, and Nesterov's momentum.
std::vector<OptimizerSpec> AllSpecs() {
  std::vector<OptimizerSpec> specs;
  for (const OptimizerRow& row : Optimizers()) {
    OptimizerSpec spec;
    static_cast<OptimizerSettings&>(spec) = row.defaults;
    specs.push_back(spec);
    for (const OptimizerParameter* const parameter : row.parameters) {
      for (const OptimizerNumber& number : parameter->numbers) spec.*number.value = 0.5;
    }
    EXPECT_TRUE(ValidateOptimizer(spec).ok());
    specs.push_back(spec);
  }
  OptimizerSpec nesterov;
  nesterov.name = OptimizerName::kSgd;
  nesterov.momentum = 0.5;
  nesterov.nesterov = true;
  EXPECT_TRUE(ValidateOptimizer(nesterov).ok());
  specs.push_back(nesterov);
  return specs;
}

// Calls body(rule, reference, spec) for each spec on each instruction set.
template <class Body>
void WithEveryRule(Body body) {
  for (const OptimizerSpec& spec : AllSpecs()) {
    SCOPED_TRACE(testing::Message()
                 << NameOf(spec.name) << " with " << StateFields(spec).size() << " fields");
    const auto rule = NewUpdateRule(spec, Kernel::kBest);
    const auto reference = NewUpdateRule(spec, Kernel::kReference);
    ASSERT_TRUE(rule.ok()) << rule.status();
    ASSERT_TRUE(reference.ok()) << reference.status();
    OnEveryTarget([&] { body(**rule, **reference, spec); });
  }
}

GroupScalars Decay() {
  GroupScalars group;
  group.weight_decay = 0.01;
  return group;
}

// Updates copies of equal arrays with both.
void CheckEqual(const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec,
                uint64_t update, RuleArrays* expected, RuleArrays* found) {
  found->CopyFrom(expected);
  expected->Run(reference, ScalarsOfUpdate(spec, update), Decay());
  found->Run(rule, ScalarsOfUpdate(spec, update), Decay());
  expected->ExpectEqual(*found);
}

TEST(Rules, EqualTheReferenceAtEveryLength) {
  WithEveryRule([](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
    Random random;
    const size_t fields = StateFields(spec).size();
    for (size_t n = 0; n <= kMaxLength; ++n) {
      SCOPED_TRACE(n);
      RuleArrays expected(fields, 1, n, n, n);
      RuleArrays found(fields, 1, n, n, n);
      FillRandomly(spec, &random, &expected);
      CheckEqual(rule, reference, spec, n + 1, &expected, &found);
    }
  });
}

struct Shape {
  size_t rows, cols, ld, grad_ld;
};
constexpr Shape kShapes[] = {{32, 128, 128, 128}, {32, 128, 300, 128},   {3, 17, 17, 40},
                             {5, 33, 70, 33},     {2, 3000, 3000, 3000}, {0, 8, 8, 8},
                             {4, 1, 1, 1},        {7, 1, 9, 3}};

TEST(Rules, EqualTheReferenceOnStridedRows) {
  WithEveryRule([](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
    Random random;
    const size_t fields = StateFields(spec).size();
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols));
      RuleArrays expected(fields, s.rows, s.cols, s.ld, s.grad_ld);
      RuleArrays found(fields, s.rows, s.cols, s.ld, s.grad_ld);
      FillRandomly(spec, &random, &expected);
      CheckEqual(rule, reference, spec, 5, &expected, &found);
    }
  });
}

TEST(Rules, EqualTheReferenceAtEveryAlignment) {
  WithEveryRule([](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
    Random random;
    const size_t fields = StateFields(spec).size();
    for (size_t shift = 0; shift < 64; shift += 4) {
      SCOPED_TRACE(shift);
      RuleArrays expected(fields, 1, 100, 100, 100);
      RuleArrays found(fields, 1, 100, 100, 100, shift);
      FillRandomly(spec, &random, &expected);
      CheckEqual(rule, reference, spec, 1, &expected, &found);
    }
  });
}

// As a reduction gives them: pieces of any size, and the last may be short.
TEST(Rules, PreparedForPiecesEqualTheReference) {
  WithEveryRule([](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
    constexpr size_t kElements = 411;
    Random random;
    const size_t fields = StateFields(spec).size();
    RuleArrays expected(fields, 1, kElements, kElements, kElements);
    RuleArrays found(fields, 1, kElements, kElements, kElements);
    FillRandomly(spec, &random, &expected);
    found.CopyFrom(&expected);
    for (uint64_t t = 1; t <= 3; ++t) {
      expected.Run(reference, ScalarsOfUpdate(spec, t), Decay());
      const auto prepared = rule.Prepare(ScalarsOfUpdate(spec, t), Decay());
      ScopedFlushDenormals flush;
      for (size_t begin = 0; begin < kElements;) {
        const size_t n = std::min(kElements - begin, begin == 128 ? size_t{17} : size_t{128});
        TileState state = found.state;
        state.weight += begin;
        for (size_t f = 0; f < fields; ++f) state.field[f] += begin;
        prepared->Run(n, found.grad() + begin, state);
        begin += n;
      }
    }
    expected.ExpectEqual(found);
  });
}

// Measures copies of equal arrays with both. Nothing but steps may be written.
TEST(Rules, StepsEqualTheReferenceAtEveryLength) {
  WithEveryRule([](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
    ASSERT_EQ(rule.PrepareSteps({}, {}) != nullptr, RowOf(spec.name).adapts);
    if (!RowOf(spec.name).adapts) return;
    Random random;
    const size_t fields = StateFields(spec).size();
    for (size_t n = 0; n <= kMaxLength; ++n) {
      SCOPED_TRACE(n);
      RuleArrays arrays(fields, 1, n, n, n);
      FillRandomly(spec, &random, &arrays);
      RuleArrays before(fields, 1, n, n, n);
      before.CopyFrom(&arrays);
      std::vector<float> expected(n + 1, 7.0f), found(n + 1, 7.0f);
      ScopedFlushDenormals flush;
      for (const auto& [from, into] :
           {std::pair(&reference, &expected), std::pair(&rule, &found)}) {
        from->PrepareSteps(ScalarsOfUpdate(spec, 2), Decay())
            ->Run(n, arrays.grad(), arrays.state, into->data());
      }
      ExpectSame(expected.data(), found.data(), n + 1, "steps");
      before.ExpectEqual(arrays);
    }
  });
}

// An update subtracts the step, times learning rate and trust ratio.
TEST(Rules, UpdatesTakeTheStepsThatAreMeasured) {
  WithEveryRule([](const UpdateRule& rule, const UpdateRule&, const OptimizerSpec& spec) {
    if (!RowOf(spec.name).adapts) return;
    Random random;
    RuleArrays arrays(StateFields(spec).size(), 1, kMaxLength, kMaxLength, kMaxLength);
    FillRandomly(spec, &random, &arrays);
    const std::vector<float> before(arrays.state.weight, arrays.state.weight + kMaxLength);
    std::vector<float> steps(kMaxLength);
    GroupScalars group = Decay();
    group.trust_ratio = 3;
    StepScalars scalars = ScalarsOfUpdate(spec, 2);
    scalars.lr = 0.25;
    {
      ScopedFlushDenormals flush;
      rule.PrepareSteps(scalars, group)->Run(kMaxLength, arrays.grad(), arrays.state, steps.data());
    }
    arrays.Run(rule, scalars, group);
    for (size_t i = 0; i < kMaxLength; ++i) {
      EXPECT_EQ(arrays.state.weight[i], before[i] - 0.75f * steps[i]) << i;
    }
  });
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::array<float, 13> kSpecial = {0.0f,
                                            -0.0f,
                                            1e-40f,
                                            -1e-40f,
                                            1e-38f,
                                            1.0f,
                                            -1.0f,
                                            1e30f,
                                            -1e30f,
                                            1.1259e15f,
                                            kInf,
                                            -kInf,
                                            std::numeric_limits<float>::quiet_NaN()};

// Every combination in gradient, weight and the first two fields.
TEST(Rules, EqualTheReferenceOnSpecialValues) {
  const auto& values = kSpecial;
  WithEveryRule(
      [&](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
        const size_t fields = StateFields(spec).size();
        const size_t n = values.size() * values.size();
        for (const float grad : values) {
          for (const float second : values) {
            RuleArrays expected(fields, 1, n, n, n);
            RuleArrays found(fields, 1, n, n, n);
            for (size_t i = 0; i < n; ++i) {
              expected.grad()[i] = grad;
              expected.state.weight[i] = values[i / values.size()];
              for (size_t f = 0; f < fields; ++f) {
                expected.state.field[f][i] = f == 0 ? values[i % values.size()] : std::fabs(second);
              }
            }
            CheckEqual(rule, reference, spec, 2, &expected, &found);
          }
        }
      });
}

bool IsDenormal(float value) {
  const uint32_t bits = ToBits(value);
  return (bits & 0x7f800000u) == 0 && (bits & 0x7fffffu) != 0;
}

TEST(Rules, KeepNoDenormal) {
  WithEveryRule([](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
    const size_t fields = StateFields(spec).size();
    for (const UpdateRule* const each : {&rule, &reference}) {
      // The first is denormal, the second becomes it when it is multiplied by 0.9.
      for (const float small : {1.17e-38f, 1.2e-38f}) {
        RuleArrays arrays(fields, 1, 40, 40, 40);
        for (size_t i = 0; i < 40; ++i) {
          arrays.grad()[i] = 1e-39f;
          arrays.state.weight[i] = 1e-39f;
          for (size_t f = 0; f < fields; ++f) arrays.state.field[f][i] = small;
        }
        arrays.Run(*each, ScalarsOfUpdate(spec, 3), Decay());
        for (size_t i = 0; i < 40; ++i) {
          EXPECT_FALSE(IsDenormal(arrays.state.weight[i]));
          for (size_t f = 0; f < fields; ++f) EXPECT_FALSE(IsDenormal(arrays.state.field[f][i]));
        }
      }
    }
  });
}

TEST(Rules, BitsIgnoreGroupingAndKernel) {
  constexpr size_t kRows = 40, kCols = 150;
  WithEveryRule([](const UpdateRule& rule, const UpdateRule& reference, const OptimizerSpec& spec) {
    const size_t fields = StateFields(spec).size();
    RuleArrays whole(fields, kRows, kCols, kCols, kCols);
    RuleArrays tiled(fields, kRows, kCols, kCols, kCols);
    for (size_t i = 0; i < whole.n; ++i) {
      whole.grad()[i] = std::ldexp(static_cast<float>(i % 977) - 488.0f, -static_cast<int>(i % 23));
      whole.state.weight[i] = 0.5f;
      for (size_t f = 0; f < fields; ++f) whole.state.field[f][i] = 0;
    }
    tiled.CopyFrom(&whole);
    for (uint64_t t = 1; t <= 3; ++t) {
      whole.Run(reference, ScalarsOfUpdate(spec, t), Decay());
      for (size_t row = 0; row < kRows; row += 32) {
        for (size_t col = 0; col < kCols; col += 128) {
          const size_t offset = row * kCols + col;
          TileState state = tiled.state;
          state.weight += offset;
          for (size_t f = 0; f < fields; ++f) state.field[f] += offset;
          rule.Run(static_cast<uint32_t>(std::min<size_t>(32, kRows - row)),
                   static_cast<uint32_t>(std::min<size_t>(128, kCols - col)), tiled.grad() + offset,
                   kCols, ScalarsOfUpdate(spec, t), Decay(), state);
        }
      }
    }
    whole.ExpectEqual(tiled);
  });
}

}  // namespace
}  // namespace eps
