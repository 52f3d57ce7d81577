#include "base/job/optimizers.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StrEq;

TEST(Optimizers, RowsFollowTheEnumerators) {
  ASSERT_EQ(Optimizers().size(), kNames<OptimizerName>.size());
  for (size_t i = 0; i < Optimizers().size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(Optimizers()[i].name), i);
    EXPECT_EQ(&RowOf(Optimizers()[i].name), &Optimizers()[i]);
  }
}

TEST(Optimizers, EachParameterHasOwnersAndLines) {
  std::set<std::string> lines;
  for (const OptimizerParameter* parameter : OptimizerParameters()) {
    EXPECT_FALSE(OwnersOf(*parameter).empty()) << parameter->key;
    for (const OptimizerNumber& number : parameter->numbers) {
      EXPECT_TRUE(lines.insert(number.line).second) << number.line;
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
