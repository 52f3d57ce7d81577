#include "optimizer/update_rule.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(SquareSum, ReadsDenormalsAsZeros) {
  const float denormal = 1e-40f;
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
