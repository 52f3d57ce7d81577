#include "base/job/initial_values.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

std::vector<float> Initial(const JobSpec& spec, uint32_t tensor, uint64_t first, size_t n) {
  std::vector<float> values(n);
  FillInitialValues(spec, TensorId(tensor), first, absl::MakeSpan(values));
  return values;
}

TEST(InitialValues, AreTheGoldenBits) {
  const JobSpec spec = TinyGpt2Spec();
  const struct {
    uint32_t tensor;
    std::vector<uint32_t> bits;
  } cases[] = {
      {0, {0xbc12b8cb, 0xbb24b2f1, 0xbbce3d1f, 0x3b706805, 0x3c6f6e29, 0xbce8cf25}},
      {1, {0x3d08b260, 0xbd15867c, 0x3be14908, 0x3c827522, 0xbb056f64, 0xbc18a044}},
      {2, {0x3f800000, 0x3f800000}},  // a norm's weight
      {3, {0, 0}},                    // its bias
      {6, {0x3b7eed18, 0x3c9165c3, 0xbc6d9784, 0xbbdd1d94, 0x3b163daa, 0xbb0f8da3}},
  };
  for (const auto& c : cases) {
    const std::vector<float> values = Initial(spec, c.tensor, 0, c.bits.size());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(Bits(values[i]), c.bits[i]) << "tensor " << c.tensor << " element " << i;
    }
  }
}

TEST(InitialValues, DependOnlyOnThePosition) {
  const JobSpec spec = TinyGpt2Spec();
  const std::vector<float> whole = Initial(spec, 0, 0, 100);
  for (size_t first : {1, 2, 7, 50}) {
    const std::vector<float> piece = Initial(spec, 0, first, 23);
    for (size_t i = 0; i < piece.size(); ++i) EXPECT_EQ(piece[i], whole[first + i]);
  }
  EXPECT_NE(Initial(spec, 1, 0, 1), Initial(spec, 0, 0, 1));
  JobSpec other = spec;
  other.training.seed = 43;
  EXPECT_NE(Initial(other, 0, 0, 1), Initial(spec, 0, 0, 1));
  // An element beyond 2^32 has a place of its own.
  EXPECT_NE(Initial(spec, 0, uint64_t{1} << 33, 1), Initial(spec, 0, 0, 1));
}

TEST(InitialValues, AreNormal) {
  JobSpec spec = TinyGpt2Spec();
  spec.tensors[0].init_std = 1.0;
  const std::vector<float> values = Initial(spec, 0, 0, 1'000'000);
  const double n = static_cast<double>(values.size());
  double mean = 0, second = 0, third = 0, fourth = 0;
  for (double x : values) {
    mean += x / n;
    second += x * x / n;
    third += x * x * x / n;
    fourth += x * x * x * x / n;
  }
  // Five standard errors each.
  EXPECT_NEAR(mean, 0.0, 0.005);
  EXPECT_NEAR(second, 1.0, 0.0071);
  EXPECT_NEAR(third, 0.0, 0.0195);
  EXPECT_NEAR(fourth, 3.0, 0.049);
  // The distribution function at a few places, tails included.
  for (double x : {-3.5, -2.0, -1.0, -0.2, 0.0, 0.5, 1.5, 3.0}) {
    double below = 0;
    for (double v : values) below += v < x ? 1.0 : 0.0;
    const double expected = 0.5 * std::erfc(-x / std::sqrt(2.0));
    const double error = std::sqrt(expected * (1 - expected) / n);
    EXPECT_NEAR(below / n, expected, 5 * error) << x;
  }
}

TEST(InitialValues, AreUniformBetweenTheirBounds) {
  JobSpec spec = TinyGpt2Spec();
  const std::vector<float> normal = Initial(spec, 0, 0, 1'000'000);
  spec.tensors[0].init = Initializer::kUniform;
  spec.tensors[0].init_low = -0.5;
  spec.tensors[0].init_high = 1.5;
  const std::vector<float> values = Initial(spec, 0, 0, normal.size());
  const double n = static_cast<double>(values.size());
  double mean = 0, second = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    ASSERT_TRUE(x >= -0.5 && x <= 1.5);
    // Both come from the same bits.
    ASSERT_EQ(x < 0.5, normal[i] < 0) << i;
    mean += x / n;
    second += (x - 0.5) * (x - 0.5) / n;
  }
  // Five standard errors each.
  EXPECT_NEAR(mean, 0.5, 5 * 0.577 / 1000);
  EXPECT_NEAR(second, 1.0 / 3, 5 * 0.298 / 1000);
  EXPECT_EQ(Initial(spec, 0, 77, 5), std::vector<float>(values.begin() + 77, values.begin() + 82));
}

}  // namespace
}  // namespace eps
