// A loaded plug-in as the rule of a job: its parameters, its description, and its updates.

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/job/optimizers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizer/plugin/plugin_parameters.h"
#include "optimizer/plugin/testing/objects.h"
#include "optimizer/plugin/updater_plugin.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

const UpdaterPlugin& Rmsprop() {
  static const UpdaterPlugin* const plugin = *LoadUpdaterPlugin(kGoodUpdater);
  return *plugin;
}

OptimizerSpec SpecOf(absl::string_view parameters) {
  OptimizerSpec spec;
  spec.name = OptimizerName::kPlugin;
  spec.plugin = *ChooseParameters(Rmsprop(), parameters);
  return spec;
}

TEST(ChooseParametersTest, FillsUsualValues) {
  const PluginSpec spec = *ChooseParameters(Rmsprop(), " eps=0.5, ");
  EXPECT_THAT(spec.parameters, ElementsAre(Pair("alpha", 0.99), Pair("eps", 0.5)));
  EXPECT_THAT(spec.fields, ElementsAre("square_avg"));
  EXPECT_EQ(spec.sha256, Rmsprop().sha256);
  EXPECT_TRUE(ValidatePlugin(spec).ok()) << ValidatePlugin(spec);
}

TEST(ChooseParametersTest, RefusesWrongOnes) {
  const std::pair<const char*, const char*> cases[] = {
      {"beta=1", "rmsprop has no parameter \"beta\"; it has alpha, eps"},
      {"alpha=1", "alpha: expected a number from 0 to 0.999999, found \"1\""},
      {"alpha=nan", "alpha: expected a number"},
      {"alpha=", "alpha: expected a number"},
      {"alpha", "alpha: expected a number"},
      {"alpha=0.5 alpha=0.5", "alpha is set twice"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status = ChooseParameters(Rmsprop(), text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(PluginRuleTest, RefusesAnotherDescription) {
  const std::vector<void (*)(PluginSpec*)> changes = {
      [](PluginSpec* spec) { spec->name = "other"; },
      [](PluginSpec* spec) { spec->fields.push_back("more"); },
      [](PluginSpec* spec) { spec->fields.clear(); },
      [](PluginSpec* spec) { spec->parameters.pop_back(); },
      [](PluginSpec* spec) { spec->parameters[0].second = 2; },
      [](PluginSpec* spec) { std::swap(spec->parameters[0].first, spec->parameters[1].first); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    OptimizerSpec spec = SpecOf("");
    changes[i](&spec.plugin);
    const absl::Status status = NewUpdateRule(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not describe the updater rmsprop"));
  }
}

TEST(PluginRuleTest, NamesTheDigestsOfWhatIsLoaded) {
  OptimizerSpec spec = SpecOf("");
  spec.plugin.sha256 = std::string(64, '1');
  const absl::Status status = NewUpdateRule(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(spec.plugin.sha256));
  EXPECT_THAT(std::string(status.message()), HasSubstr(Rmsprop().sha256));
}

// A tile of 3 x 5 elements whose rows are 7 floats apart.
TEST(PluginRuleTest, UpdatesTilesByTheFormula) {
  constexpr uint32_t kRows = 3, kCols = 5;
  constexpr size_t kLd = 7, kGradLd = 6;
  StepScalars step;
  step.lr = 0.25;
  step.grad_scale = 0.5F;
  step.update = 3;
  GroupScalars group;
  group.lr_multiplier = 2;
  group.weight_decay = 0.125;
  for (const Kernel kernel : {Kernel::kBest, Kernel::kReference}) {
    std::vector<float> grad(kRows * kGradLd), weight(kRows * kLd, -9.0F), square(kRows * kLd, 4.0F);
    for (size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<float>(i) - 4;
    const auto rule = NewUpdateRule(SpecOf("alpha=0.75 eps=0.5"), kernel);
    ASSERT_TRUE(rule.ok()) << rule.status();
    TileState state;
    state.weight = weight.data();
    state.field[0] = square.data();
    state.ld = kLd;
    (*rule)->Run(kRows, kCols, grad.data(), kGradLd, step, group, state);
    for (uint32_t r = 0; r < kRows; ++r) {
      for (size_t c = 0; c < kLd; ++c) {
        const size_t i = r * kLd + c;
        const double g = grad[r * kGradLd + c % kGradLd] * 0.5 + 0.125 * -9;
        const double v = c < kCols ? 0.75 * 4 + 0.25 * g * g : 4;
        const double w = c < kCols ? -9 - 0.5 * g / (std::sqrt(v) + 0.5) : -9;
        EXPECT_FLOAT_EQ(weight[i], static_cast<float>(w)) << r << ", " << c;
        EXPECT_FLOAT_EQ(square[i], static_cast<float>(v)) << r << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace eps
