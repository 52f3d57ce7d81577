#include "worker/models/generate/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

SamplerOptions Options(double temperature, uint32_t top_k, uint64_t seed) {
  SamplerOptions options;
  options.temperature = temperature;
  options.top_k = top_k;
  options.seed = seed;
  return options;
}

TEST(SamplerTest, ChoosesTheLikeliestTokenAtTemperatureZero) {
  const std::vector<float> scores = {0.5f, 2.0f, -1.0f, 2.0f};
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(SampleToken(scores, Options(0, 40, i), i), 1);
}

TEST(SamplerTest, DrawsOnlyFromTheKLikeliest) {
  const std::vector<float> scores = {1.0f, 1.1f, 0.9f, 1.2f};
  std::map<int32_t, int> counts;
  for (uint64_t i = 0; i < 300; ++i) ++counts[SampleToken(scores, Options(1, 2, 7), i)];
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_GT(counts[1], 100);
  EXPECT_GT(counts[3], 100);
}

TEST(SamplerTest, FollowsTheSoftmaxOfTheScores) {
  const std::vector<float> scores = {0.0f, std::log(2.0f), std::log(5.0f)};
  for (const double temperature : {1.0, 0.5}) {
    std::vector<double> expected;
    double sum = 0;
    for (const float s : scores) sum += std::exp(s / temperature);
    for (const float s : scores) expected.push_back(std::exp(s / temperature) / sum);
    std::vector<int> counts(3);
    const int n = 20000;
    for (int i = 0; i < n; ++i) {
      ++counts[static_cast<size_t>(SampleToken(scores, Options(temperature, 0, 3), i))];
    }
    for (size_t t = 0; t < 3; ++t) EXPECT_NEAR(counts[t] / double{n}, expected[t], 0.015);
  }
}

TEST(SamplerTest, IsAFunctionOfSeedAndPlace) {
  const std::vector<float> scores(50, 0.0f);
  std::vector<int32_t> first, again, other;
  for (uint64_t i = 0; i < 64; ++i) {
    first.push_back(SampleToken(scores, Options(1, 0, 1), i));
    other.push_back(SampleToken(scores, Options(1, 0, 2), i));
  }
  for (uint64_t i = 64; i-- > 0;) {
    again.insert(again.begin(), SampleToken(scores, Options(1, 0, 1), i));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(SamplerTest, StaysWithinTheVocabularyForExtremeScores) {
  const float big = std::numeric_limits<float>::max();
  const std::vector<float> scores = {-big, big, -big};
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(SampleToken(scores, Options(0.01, 0, i), i), 1);
}

}  // namespace
}  // namespace eps
