#include "worker/exec/cuda/loss_bodies.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/numerics/flush_denormals.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/testing/simulated_grid.h"
#include "worker/relay/stage_program.h"

namespace eps::grid {
namespace {

static_assert(EPS_CUDA_IGNORE_LABEL == kIgnoreLabel);

using elementwise::BitsOf;
using elementwise::EncodeBf16One;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kRounding = 0x1p-24;  // u of loss_bodies.h

// Scores and labels of some rows, and what the kernel makes of them.
template <class Element>
struct Rows {
  uint64_t vocab;
  std::vector<int32_t> labels;
  std::vector<Element> scores;
  std::vector<float> log_p;

  Rows(uint64_t classes, std::vector<int32_t> of_rows)
      : vocab(classes), labels(std::move(of_rows)), scores(labels.size() * vocab) {}

  void Run(float scale, uint32_t seed) {
    log_p.assign(labels.size(), -77.0f);
    SimulatedGrid grid(seed);
    ASSERT_EQ(LaunchLoss(sizeof(Element) == 4 ? EPS_CUDA_FP32 : EPS_CUDA_BF16, scores.data(),
                         labels.data(), labels.size(), vocab, scale, log_p.data(), grid),
              0);
    ASSERT_EQ(grid.launches(), 1);
  }
};

enum class Content { kUsual, kWide, kTies, kOneWins, kMinusInfinities };
constexpr Content kContents[] = {Content::kUsual, Content::kWide, Content::kTies, Content::kOneWins,
                                 Content::kMinusInfinities};

// Returns rows of scores that a bfloat16 has, too. Each has a finite maximum.
std::vector<float> Scores(Content content, uint32_t seed, size_t rows, size_t vocab) {
  std::vector<float> scores(rows * vocab);
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < scores.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float uniform = static_cast<float>(state >> 8) * 0x1p-23f - 1;
    float score = 8 * uniform;
    if (content == Content::kWide) score = 200 * uniform;
    if (content == Content::kTies) score = static_cast<float>(state >> 30);
    if (content == Content::kOneWins) score = i % vocab == vocab / 2 ? 90.0f : uniform;
    if (content == Content::kMinusInfinities && i % vocab != vocab / 3 && state >> 30 != 0) {
      score = -kInf;
    }
    scores[i] = elementwise::DecodeBf16One(EncodeBf16One(score));
  }
  return scores;
}

// Checks a row that was computed in FP32 against doubles, with the bounds of loss_bodies.h.
void CheckRow(const std::vector<float>& scores, int32_t label, float scale, float log_p,
              const float* gradient) {
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - maximum);
  const double log_vocab = std::log(static_cast<double>(scores.size()));
  const double exact = scores[label] - maximum - std::log(sum);
  if (std::isinf(exact)) {
    EXPECT_EQ(log_p, -kInf);
  } else {
    ASSERT_LE(std::fabs(log_p - exact), kRounding * (4 * std::fabs(exact) + log_vocab + 13))
        << log_p << ", expected " << exact << " of " << scores.size();
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    const double distance = maximum - scores[i];
    const double p = std::exp(-distance) / sum;
    const double share = p - (static_cast<int32_t>(i) == label ? 1 : 0);
    // The error of e^-distance, of the sum, of the division and the product; of two more
    // operations.
    const double of_p = p == 0 ? 0 : p * (distance + log_vocab + 16);
    const double rounding = kRounding * (of_p + 2 * std::fabs(share));
    // The share and the result may be below the least normal float, and become 0.
    const double bound = std::fabs(scale) * (rounding + 0x1p-126) + 0x1p-126;
    ASSERT_LE(std::fabs(gradient[i] - share * scale), bound)
        << i << " of " << scores.size() << ", p " << p;
  }
}

TEST(LossBodiesTest, Fp32IsCloseToDoubles) {
  uint32_t seed = 0;
  for (const uint64_t vocab : {1, 2, 3, 17, 255, 256, 257, 1000, 5003, 50257}) {
    for (const Content content : kContents) {
      const int32_t last = static_cast<int32_t>(vocab - 1);
      Rows<float> rows(vocab, {0, last, last / 2});
      rows.scores = Scores(content, ++seed, 3, vocab);
      const std::vector<float> scores = rows.scores;
      const float scale = seed % 2 == 0 ? 1.0f : -0.037f;
      rows.Run(scale, seed);
      for (size_t r = 0; r < 3; ++r) {
        const auto begin = scores.begin() + static_cast<ptrdiff_t>(r * vocab);
        CheckRow(std::vector<float>(begin, begin + static_cast<ptrdiff_t>(vocab)), rows.labels[r],
                 scale, rows.log_p[r], rows.scores.data() + r * vocab);
      }
    }
  }
}

TEST(LossBodiesTest, Bf16IsFp32RoundedOnce) {
  for (const uint64_t vocab : {1, 5, 300, 50257}) {
    for (const Content content : kContents) {
      Rows<float> wide(vocab, {0, kIgnoreLabel, static_cast<int32_t>(vocab - 1)});
      Rows<uint16_t> narrow(vocab, wide.labels);
      wide.scores = Scores(content, static_cast<uint32_t>(vocab), 3, vocab);
      for (size_t i = 0; i < wide.scores.size(); ++i) {
        narrow.scores[i] = EncodeBf16One(wide.scores[i]);
      }
      wide.Run(0.125f, 1);
      narrow.Run(0.125f, 2);
      for (size_t r = 0; r < 3; ++r) ASSERT_EQ(BitsOf(wide.log_p[r]), BitsOf(narrow.log_p[r]));
      for (size_t i = 0; i < wide.scores.size(); ++i) {
        ASSERT_EQ(narrow.scores[i], EncodeBf16One(wide.scores[i])) << i << " of " << vocab;
      }
    }
  }
}

TEST(LossBodiesTest, TakesMillionsOfClasses) {
  constexpr uint64_t kClasses = (1 << 21) + 3;
  Rows<uint16_t> rows(kClasses, {static_cast<int32_t>(kClasses - 1)});
  std::fill(rows.scores.begin(), rows.scores.end(), EncodeBf16One(-3.0f));
  rows.Run(1.0f, 1);
  EXPECT_NEAR(rows.log_p[0], -std::log(double{kClasses}), 0x1p-20);
  EXPECT_EQ(rows.scores[0], EncodeBf16One(1.0f / kClasses));
  EXPECT_EQ(rows.scores.back(), EncodeBf16One(1.0f / kClasses - 1));
}

// Returns the bits of a row of 3000 scores at a place among others.
std::vector<uint32_t> BitsOfRow(size_t place, uint32_t seed) {
  constexpr size_t kVocab = 3001;
  Rows<float> rows(kVocab, std::vector<int32_t>(5, 1234));
  rows.scores = Scores(Content::kWide, seed, 5, kVocab);
  const std::vector<float> row = Scores(Content::kUsual, 99, 1, kVocab);
  std::copy(row.begin(), row.end(), rows.scores.begin() + static_cast<ptrdiff_t>(place * kVocab));
  // A denormal, and scores whose probabilities are.
  rows.scores[place * kVocab] = 1e-39f;
  rows.scores[place * kVocab + 1] = -80.5f;
  rows.scores[place * kVocab + 2] = -78.5f;
  rows.Run(300.0f, seed);
  std::vector<uint32_t> bits = {BitsOf(rows.log_p[place])};
  for (size_t i = 0; i < kVocab; ++i) bits.push_back(BitsOf(rows.scores[place * kVocab + i]));
  return bits;
}

TEST(LossBodiesTest, BitsDependOnTheRowAlone) {
  const std::vector<uint32_t> expected = BitsOfRow(0, 1);
  for (uint32_t seed = 2; seed < 12; ++seed) {
    ASSERT_EQ(BitsOfRow(seed % 5, seed), expected) << "place and order of threads " << seed;
  }
  const ScopedFlushDenormals flush;
  EXPECT_EQ(BitsOfRow(3, 20), expected);
}

// Returns the bits of rows whose scores are denormal or nearly so.
std::vector<uint32_t> BitsOfTinyRows() {
  Rows<float> rows(4, {0, 1, 2, 3});
  for (size_t i = 0; i < 16; ++i) {
    const float tiny[] = {1e-39f, 1.2e-38f, -1.5e-38f, -1e-39f};
    rows.scores[i] = i < 12 ? tiny[(i + i / 4) % 4] : -tiny[i % 2];
  }
  rows.Run(1e-38f, 1);
  std::vector<uint32_t> bits;
  for (const float value : rows.log_p) bits.push_back(BitsOf(value));
  for (const float value : rows.scores) bits.push_back(BitsOf(value));
  return bits;
}

TEST(LossBodiesTest, TinyScoresIgnoreTheDenormalMode) {
  const std::vector<uint32_t> expected = BitsOfTinyRows();
  EXPECT_EQ(expected[0], BitsOf(-loss_arithmetic::LogOne(4)));
  const ScopedFlushDenormals flush;
  EXPECT_EQ(BitsOfTinyRows(), expected);
}

TEST(LossBodiesTest, IgnoredRowsBecomeZeros) {
  Rows<float> rows(700, {kIgnoreLabel, 5, kIgnoreLabel});
  rows.scores = Scores(Content::kUsual, 1, 3, 700);
  rows.scores[3] = kNan;
  rows.scores[1400] = kInf;
  rows.Run(1.0f, 3);
  for (const size_t row : {0, 2}) {
    EXPECT_EQ(BitsOf(rows.log_p[row]), 0u);
    for (size_t i = 0; i < 700; ++i) ASSERT_EQ(BitsOf(rows.scores[700 * row + i]), 0u) << i;
  }
  EXPECT_LT(rows.log_p[1], 0);
}

// Runs three rows, of which the second has `score` at `at` and that label; the second is NaN in
// every bit that it writes if `is_nan`, and the others are finite.
void CheckMiddleRow(uint64_t vocab, uint64_t at, float score, int32_t label, bool is_nan) {
  Rows<float> rows(vocab, {0, label, 0});
  rows.scores = Scores(Content::kUsual, 7, 3, vocab);
  rows.scores[vocab + at] = score;
  rows.Run(1.0f, static_cast<uint32_t>(at));
  EXPECT_EQ(std::isnan(rows.log_p[1]), is_nan) << at << ": " << score << ", label " << label;
  for (uint64_t i = 0; i < vocab; ++i) {
    ASSERT_EQ(std::isnan(rows.scores[vocab + i]), is_nan) << i << ": " << score << ", " << label;
    ASSERT_TRUE(std::isfinite(rows.scores[i]) && std::isfinite(rows.scores[2 * vocab + i]));
  }
  EXPECT_TRUE(std::isfinite(rows.log_p[0]) && std::isfinite(rows.log_p[2]));
}

TEST(LossBodiesTest, NanAndInfinityReachTheLoss) {
  for (const uint64_t at : {0, 1, 15, 16, 255, 256, 599}) {
    CheckMiddleRow(600, at, kNan, 3, true);
    CheckMiddleRow(600, at, -kNan, 3, true);
    CheckMiddleRow(600, at, kInf, 3, true);
    CheckMiddleRow(600, at, kInf, static_cast<int32_t>(at), true);
    CheckMiddleRow(600, at, -kInf, 3, false);
    CheckMiddleRow(600, at, 3e38f, 3, false);
  }
  CheckMiddleRow(1, 0, -kInf, 0, true);  // -infinity alone
}

TEST(LossBodiesTest, ImprobableLabelsHaveInfiniteLosses) {
  Rows<float> rows(600, {7});
  rows.scores[7] = -kInf;
  rows.Run(1.0f, 1);
  EXPECT_EQ(rows.log_p[0], -kInf);
  EXPECT_EQ(rows.scores[7], -1.0f);
}

TEST(LossBodiesTest, LabelsThatAreNoClassGiveNan) {
  for (const int32_t label : {-1, -99, -101, 600, 601, std::numeric_limits<int32_t>::max(),
                              std::numeric_limits<int32_t>::min()}) {
    CheckMiddleRow(600, 0, 1.0f, label, true);
  }
  CheckMiddleRow(600, 0, 1.0f, 599, false);
}

TEST(LossBodiesTest, RefusesShapesThatHaveNoLoss) {
  SimulatedGrid grid(1);
  const auto launch = [&grid](int elements, uint64_t rows, uint64_t vocab) {
    return LaunchLoss(elements, nullptr, nullptr, rows, vocab, 1.0f, nullptr, grid);
  };
  EXPECT_EQ(launch(EPS_CUDA_FP32, 1, 0), kInvalidValue);
  EXPECT_EQ(launch(EPS_CUDA_FP32, uint64_t{1} << 31, 5), kInvalidValue);
  EXPECT_EQ(launch(3, 1, 5), kInvalidValue);
  EXPECT_EQ(launch(EPS_CUDA_BF16, 0, 5), 0);
  EXPECT_EQ(grid.launches(), 0);
}

}  // namespace
}  // namespace eps::grid
