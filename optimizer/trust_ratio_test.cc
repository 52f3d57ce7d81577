#include "optimizer/trust_ratio.h"

#include <cmath>
#include <limits>

#include "base/job/optimizers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(TrustRatio, IsTheQuotientOfTheNorms) {
  EXPECT_EQ(TrustRatio({36, 4}), 3);
  EXPECT_EQ(TrustRatio({1, 64}), 0.125);
}

TEST(TrustRatio, IsOneWhereItWouldMeanNothing) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(TrustRatio({0, 4}), 1) << "new weights of zero would stay zero";
  EXPECT_EQ(TrustRatio({4, 0}), 1);
  EXPECT_EQ(TrustRatio({1e80, 1e-80}), 1) << "no float holds it";
  EXPECT_EQ(TrustRatio({inf, 1}), 1);
  EXPECT_EQ(TrustRatio({1, inf}), 1);
  EXPECT_EQ(TrustRatio({std::nan(""), 1}), 1);
}

TEST(TrustRatio, GroupsWithoutDecayHaveNone) {
  OptimizerSpec spec;
  ParameterGroup group;
  group.weight_decay = 0;
  EXPECT_FALSE(HasTrustRatio(spec, group));
  group.weight_decay = 0.01;
  EXPECT_TRUE(HasTrustRatio(spec, group));
  group.weight_decay = 0;
  spec.always_adapt = true;
  EXPECT_TRUE(HasTrustRatio(spec, group));
}

}  // namespace
}  // namespace eps
