#include "base/job/optimizers.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StrEq;

bool NamesAdagrad(OptimizerName name) {
  return name == OptimizerName::kAdagrad || name == OptimizerName::kAdagradSmartInfinity;
}

TEST(Optimizers, RowsFollowTheEnumerators) {
  ASSERT_EQ(Optimizers().size() + 1, kNames<OptimizerName>.size());
  EXPECT_EQ(RowOf(OptimizerName::kPlugin).name, OptimizerName::kPlugin);
  for (size_t i = 0; i < Optimizers().size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(Optimizers()[i].name), i);
    EXPECT_EQ(&RowOf(Optimizers()[i].name), &Optimizers()[i]);
    EXPECT_EQ(Optimizers()[i].defaults.name, Optimizers()[i].name);
  }
}

TEST(Optimizers, EachParameterHasOwnersAndLines) {
  std::set<std::string> lines;
  for (const OptimizerParameter* parameter : OptimizerParameters()) {
    EXPECT_FALSE(OwnersOf(*parameter).empty()) << parameter->key;
    for (const OptimizerNumber& number : parameter->numbers) {
      EXPECT_TRUE(lines.insert(number.line).second) << number.line;
    }
    if (parameter->flag_or_null != nullptr) {
      EXPECT_TRUE(lines.insert(parameter->flag_or_null->line).second);
      EXPECT_THAT(parameter->numbers, IsEmpty());
    }
  }
  for (const OptimizerRow& row : Optimizers()) {
    for (const OptimizerParameter* parameter : row.parameters) {
      EXPECT_THAT(OptimizerParameters(), testing::Contains(parameter)) << parameter->key;
    }
  }
}

TEST(Optimizers, SgdKeepsABufferOnlyWithMomentum) {
  OptimizerSpec spec;
  EXPECT_THAT(RowOf(spec.name).fields(spec), ElementsAre(StrEq("exp_avg"), StrEq("exp_avg_sq")));
  spec.name = OptimizerName::kSgd;
  EXPECT_THAT(RowOf(spec.name).fields(spec), IsEmpty());
  spec.momentum = 0.9;
  EXPECT_THAT(RowOf(spec.name).fields(spec), ElementsAre(StrEq("momentum_buffer")));
}

TEST(Optimizers, StateFieldsHaveTorchsNames) {
  const auto fields = [](OptimizerName name) {
    OptimizerSpec spec;
    spec.name = name;
    spec.momentum = 0.5;
    return StateFields(spec);
  };
  EXPECT_THAT(fields(OptimizerName::kAdam), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(fields(OptimizerName::kAdagrad), ElementsAre("sum"));
  EXPECT_THAT(fields(OptimizerName::kLion), ElementsAre("exp_avg"));
  EXPECT_THAT(fields(OptimizerName::kAdamWSqrtV), ElementsAre("exp_avg", "exp_avg_sq_sqrt"));
  EXPECT_THAT(fields(OptimizerName::kSgdSmartInfinity), ElementsAre("momentum_buffer"));
  EXPECT_THAT(fields(OptimizerName::kAdagradSmartInfinity), ElementsAre("sum"));
}

TEST(Optimizers, EveryDefaultIsValid) {
  for (const OptimizerRow& row : Optimizers()) {
    OptimizerSpec spec;
    static_cast<OptimizerSettings&>(spec) = row.defaults;
    EXPECT_TRUE(ValidateOptimizer(spec).ok()) << ValidateOptimizer(spec);
  }
}

TEST(Optimizers, WeightDecayHelpNamesEachOnce) {
  const std::string help = WeightDecayHelp();
  EXPECT_THAT(help, HasSubstr("adamw, lion, adamw_sqrtv: decoupled from the gradient; "));
  EXPECT_THAT(help, HasSubstr("; sgd, adam, adagrad, sgd_smartinfinity: part of the gradient"));
}

TEST(ResolveOptimizer, FillsOpenChoicesByRule) {
  for (const OptimizerRow& row : Optimizers()) {
    OptimizerChoices choices;
    choices.name = row.name;
    const absl::StatusOr<OptimizerSettings> settings = ResolveOptimizer(choices);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->name, row.name);
    const bool is_lamb = row.name == OptimizerName::kLamb;
    EXPECT_EQ(settings->eps, NamesAdagrad(row.name) ? 1e-10
                             : is_lamb              ? 1e-6
                                                    : 1e-8)
        << NameOf(row.name);
    EXPECT_EQ(row.adapts, is_lamb);
    EXPECT_EQ(settings->beta2, row.name == OptimizerName::kLion ? 0.99 : 0.999);
    EXPECT_EQ(settings->beta1, 0.9);
    EXPECT_EQ(settings->momentum, 0);
  }
}

TEST(ResolveOptimizer, TakesWhatIsChosen) {
  OptimizerChoices choices;
  choices.name = OptimizerName::kLion;
  choices.beta2 = 0.999;
  absl::StatusOr<OptimizerSettings> settings = ResolveOptimizer(choices);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->beta2, 0.999);
  EXPECT_EQ(settings->beta1, 0.9);
  choices = OptimizerChoices();
  choices.name = OptimizerName::kSgd;
  choices.momentum = 0.5;
  choices.nesterov = true;
  settings = ResolveOptimizer(choices);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->momentum, 0.5);
  EXPECT_TRUE(settings->nesterov);
}

TEST(ResolveOptimizer, RefusesForeignChoicesWithOwners) {
  OptimizerChoices choices;
  choices.name = OptimizerName::kLion;
  choices.momentum = 0.9;
  EXPECT_THAT(std::string(ResolveOptimizer(choices).status().message()),
              AllOf(HasSubstr("optimizer.momentum is a setting of optimizer.name=sgd or "
                              "sgd_smartinfinity, lion has optimizer.betas;"),
                    HasSubstr("leave it out, or set optimizer.name=sgd or sgd_smartinfinity")));
  choices = OptimizerChoices();
  choices.name = OptimizerName::kAdagrad;
  choices.nesterov = true;
  EXPECT_THAT(std::string(ResolveOptimizer(choices).status().message()),
              HasSubstr("optimizer.nesterov is a setting of optimizer.name=sgd, adagrad has "
                        "optimizer.eps, optimizer.lr_decay"));
}

TEST(ResolveOptimizer, IgnoresTheUsualValueOfOthers) {
  OptimizerChoices choices;
  choices.name = OptimizerName::kLion;
  choices.momentum = 0.0;
  choices.eps = 1e-8;
  choices.nesterov = false;
  const absl::StatusOr<OptimizerSettings> settings = ResolveOptimizer(choices);
  ASSERT_TRUE(settings.ok()) << settings.status();
  OptimizerSpec spec;
  static_cast<OptimizerSettings&>(spec) = *settings;
  EXPECT_TRUE(ValidateOptimizer(spec).ok()) << ValidateOptimizer(spec);
}

TEST(KeepSettings, ResolvesToTheSameSettings) {
  for (const OptimizerRow& row : Optimizers()) {
    OptimizerSettings settings = row.defaults;
    for (const OptimizerParameter* parameter : row.parameters) {
      for (const OptimizerNumber& number : parameter->numbers) settings.*number.value = 0.25;
    }
    OptimizerChoices choices;
    choices.momentum = 0.75;  // of another optimizer, or replaced
    choices.lr_decay = 0.75;
    KeepSettings(settings, &choices);
    const absl::StatusOr<OptimizerSettings> again = ResolveOptimizer(choices);
    ASSERT_TRUE(again.ok()) << again.status();
    for (const OptimizerParameter* parameter : OptimizerParameters()) {
      for (const OptimizerNumber& number : parameter->numbers) {
        EXPECT_EQ((*again).*number.value, settings.*number.value) << number.line;
        EXPECT_EQ((choices.*number.choice).has_value(), Has(row.name, *parameter));
      }
    }
    EXPECT_EQ(choices.nesterov.has_value(), row.name == OptimizerName::kSgd);
  }
}

TEST(ValidateOptimizer, NesterovNeedsMomentumWithoutDampening) {
  OptimizerSpec spec;
  spec.name = OptimizerName::kSgd;
  spec.nesterov = true;
  EXPECT_THAT(std::string(ValidateOptimizer(spec).message()),
              HasSubstr("optimizer.nesterov: expected optimizer.momentum above 0"));
  spec.momentum = 0.5;
  EXPECT_TRUE(ValidateOptimizer(spec).ok()) << ValidateOptimizer(spec);
  spec.dampening = 0.5;
  EXPECT_FALSE(ValidateOptimizer(spec).ok());
  spec.nesterov = false;
  EXPECT_TRUE(ValidateOptimizer(spec).ok()) << ValidateOptimizer(spec);
}

TEST(ValidateOptimizer, RefusesTheFlagOfAnotherOptimizer) {
  OptimizerSpec spec;
  spec.nesterov = true;
  EXPECT_THAT(std::string(ValidateOptimizer(spec).message()), HasSubstr("adamw has none"));
}

TEST(Optimizers, RefusesAParameterOfAnotherOptimizer) {
  for (const OptimizerRow& row : Optimizers()) {
    for (const OptimizerParameter* parameter : OptimizerParameters()) {
      for (const OptimizerNumber& number : parameter->numbers) {
        OptimizerSpec spec;
        spec.name = row.name;
        ASSERT_TRUE(ValidateOptimizer(spec).ok());
        spec.*number.value = 0.5;
        const absl::Status status = ValidateOptimizer(spec);
        EXPECT_EQ(status.ok(), Has(row.name, *parameter)) << number.line << " " << status;
        if (status.ok()) continue;
        EXPECT_THAT(std::string(status.message()), HasSubstr(number.line));
      }
    }
  }
}

}  // namespace
}  // namespace eps
