#include "base/numerics/rng.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

std::vector<float> Mask(const RngKey& key, double p, size_t n) {
  std::vector<float> mask(n);
  FillDropoutMask(key, p, absl::MakeSpan(mask));
  return mask;
}

TEST(Philox, GivesThePublishedAnswers) {
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

constexpr uint64_t kUniforms = uint64_t{1} << 53;

TEST(StandardNormal, GivesTheGoldenBits) {
  const struct {
    uint64_t k;
    double deviate;
  } cases[] = {
      {0x0u, -0x1.095b059d67c4cp+3},
      {0x1u, -0x1.052484c516593p+3},
      {0x3e8u, -0x1.d56c58fdc2fd9p+2},
      {0x232fu, -0x1.c234e81e4f56ep+2},
      {0x218def416u, -0x1.30381a979b747p+2},
      {0x83126e978d4u, -0x1.8b8cbb7204494p+1},
      {0xccccccccccccu, -0x1.f5c0331eeff87p+0},
      {0x2762762762762u, -0x1.6d135fb7fe6cdp+0},
      {0x8000000000000u, -0x1.5956b87528a48p-1},
      {0xfffffffffffffu, -0x1.40d931ff62707p-53},
      {0x10000000000000u, 0x1.40d931ff62707p-53},
      {0x1ccccccccccccbu, 0x1.4813c36e26d2ep+0},
      {0x1fffffffffffffu, 0x1.095b059d67c4cp+3},
  };
  for (const auto& c : cases) EXPECT_EQ(StandardNormal(c.k), c.deviate) << c.k;
}

TEST(StandardNormal, InvertsTheDistributionFunction) {
  for (uint64_t k = 0; k < kUniforms / 2; k = k + k / 50 + 1) {
    const double below = (static_cast<double>(k) + 0.5) * 0x1p-53;
    const double x = StandardNormal(k);
    EXPECT_NEAR(0.5 * std::erfc(-x / std::sqrt(2.0)), below, 1e-9 * below) << k;
    EXPECT_EQ(StandardNormal(kUniforms - 1 - k), -x) << k;
  }
}

TEST(DropoutMask, IsTheGoldenMask) {
  RngKey key;
  key.seed = 42;
  key.step = 3;
  key.micro_batch = 1;
  key.stage = 2;
  key.site = 1;
  const std::vector<float> mask = Mask(key, 0.25, 64);
  uint64_t dropped = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0.0f) {
      dropped |= uint64_t{1} << i;
    } else {
      EXPECT_EQ(mask[i], static_cast<float>(1 / 0.75));
    }
  }
  EXPECT_EQ(dropped, 0x0904c80108447c90u);
}

TEST(DropoutMask, APrefixIsThePrefixOfALongerMask) {
  const RngKey key;
  const std::vector<float> whole = Mask(key, 0.5, 1000);
  for (size_t n : {0, 1, 3, 4, 63, 64, 65, 129, 999}) {
    const std::vector<float> mask = Mask(key, 0.5, n);
    EXPECT_EQ(mask, std::vector<float>(whole.begin(), whole.begin() + n)) << n;
  }
}

TEST(DropoutMask, EveryFieldOfTheKeyChangesTheMask) {
  const std::vector<float> base = Mask(RngKey(), 0.5, 128);
  std::vector<RngKey> keys(7);
  keys[0].seed = 1;
  keys[1].seed = uint64_t{1} << 40;
  keys[2].step = 1;
  keys[3].step = uint64_t{1} << 40;
  keys[4].micro_batch = 1;
  keys[5].stage = 1;
  keys[6].site = 1;
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_NE(Mask(keys[i], 0.5, 128), base) << i;
}

TEST(DropoutMask, DropsTheShareAndKeepsTheExpectation) {
  for (double p : {0.0, 0.1, 0.5, 0.9}) {
    const std::vector<float> mask = Mask(RngKey(), p, 1'000'000);
    const double sum = std::accumulate(mask.begin(), mask.end(), 0.0);
    EXPECT_NEAR(sum / 1e6, 1.0, 5 * std::sqrt(p / (1 - p) / 1e6) + 1e-7) << p;
  }
  // As near to 1 as a double comes, everything is dropped and nothing overflows.
  for (float v : Mask(RngKey(), std::nextafter(1.0, 0.0), 1000)) EXPECT_EQ(v, 0.0f);
}

}  // namespace
}  // namespace eps
