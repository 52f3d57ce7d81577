#include "worker/data/masked_tokens.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/job/models/model_program.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Ids = std::vector<int32_t>;

constexpr uint32_t kVocabulary = 1000;
constexpr int32_t kMask = 7;

// The spec of a job whose model guesses masked tokens.
JobSpec Spec() {
  auto program = std::make_shared<ModelProgram>();
  program->task = ProgramTask::kMlm;
  program->head = HeadKind::kTokens;
  program->vocab_size = kVocabulary;
  JobSpec spec;
  spec.model.type = ModelType::kProgram;
  spec.model.program = std::move(program);
  spec.data.mask_token = kMask;
  spec.data.special_tokens = {1, 2, 7};
  return spec;
}

// Rows of the samples first, first + 1, ...; token j of sample i is 8 + (i + j) % 900.
MicroBatch Rows(uint64_t first, uint32_t rows, uint32_t seq_len, uint64_t step = 1) {
  MicroBatch batch;
  batch.step = Step(step);
  batch.samples = rows;
  batch.seq_len = seq_len;
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < seq_len; ++j) {
      batch.tokens.push_back(static_cast<int32_t>(8 + (first + i + j) % 900));
    }
  }
  return batch;
}

MicroBatch Masked(const JobSpec& spec, uint64_t first, MicroBatch batch) {
  std::vector<uint64_t> samples(batch.samples);
  std::iota(samples.begin(), samples.end(), first);
  MaskTokens(spec, samples, &batch);
  return batch;
}

TEST(MaskTokens, HidesTheSharesThatBertHides) {
  const MicroBatch before = Rows(0, 200, 500);
  const MicroBatch batch = Masked(Spec(), 0, before);
  ASSERT_EQ(batch.labels.size(), before.tokens.size());
  double masked = 0, kept = 0, other = 0, other_sum = 0;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.labels[i] == kIgnoreLabel) {
      ASSERT_EQ(batch.tokens[i], before.tokens[i]);
      continue;
    }
    ASSERT_EQ(batch.labels[i], before.tokens[i]);
    if (batch.tokens[i] == kMask) {
      ++masked;
    } else if (batch.tokens[i] == before.tokens[i]) {
      ++kept;
    } else {
      ++other;
      other_sum += batch.tokens[i];
      ASSERT_LT(batch.tokens[i], static_cast<int32_t>(kVocabulary));
    }
  }
  const double all = masked + kept + other;
  // Four standard deviations of the number that is expected.
  EXPECT_NEAR(all, 15000, 4 * std::sqrt(100000 * 0.15 * 0.85));
  EXPECT_NEAR(masked / all, 0.8, 4 * std::sqrt(0.16 / all));
  EXPECT_NEAR(other / all, 0.1, 4 * std::sqrt(0.09 / all));
  EXPECT_NEAR(kept / all, 0.1, 4 * std::sqrt(0.09 / all));
  EXPECT_NEAR(other_sum / other, 499.5, 4 * 289 / std::sqrt(other));
}

TEST(MaskTokens, DoesNotDependOnTheMicroBatch) {
  const JobSpec spec = Spec();
  const MicroBatch whole = Masked(spec, 40, Rows(40, 4, 64));
  Ids tokens, labels;
  for (uint64_t sample = 40; sample < 44; ++sample) {
    MicroBatch one = Rows(sample, 1, 64);
    one.index = 9;
    one = Masked(spec, sample, one);
    tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
    labels.insert(labels.end(), one.labels.begin(), one.labels.end());
  }
  EXPECT_EQ(whole.tokens, tokens);
  EXPECT_EQ(whole.labels, labels);
}

TEST(MaskTokens, DrawsAnewInEveryStepAndSample) {
  JobSpec spec = Spec();
  const auto places = [&](uint64_t sample, uint64_t step) {
    return Masked(spec, sample, Rows(0, 1, 500, step)).labels;
  };
  const Ids first = places(0, 1);
  EXPECT_EQ(places(0, 1), first);
  EXPECT_NE(places(0, 2), first);
  EXPECT_NE(places(1, 1), first);
  EXPECT_NE(places(uint64_t{1} << 32, 1), first);
  spec.training.seed = 5;
  EXPECT_NE(places(0, 1), first);
}

TEST(MaskTokens, SparesSpecialTokensAndPadding) {
  JobSpec spec = Spec();
  spec.data.mlm_probability = 1;
  MicroBatch batch = Rows(0, 2, 4);
  batch.tokens = {1, 30, 40, 2, 1, 50, 2, 0};
  batch.lengths = {4, 3};
  batch = Masked(spec, 0, batch);
  EXPECT_EQ(batch.labels, (Ids{kIgnoreLabel, 30, 40, kIgnoreLabel, kIgnoreLabel, 50, kIgnoreLabel,
                               kIgnoreLabel}));
  EXPECT_EQ(batch.tokens[0], 1);
  EXPECT_EQ(batch.tokens[6], 2);
  EXPECT_EQ(batch.tokens[7], 0);
}

TEST(MaskTokens, HidesAtLeastOneToken) {
  JobSpec spec = Spec();
  spec.data.mlm_probability = 1e-9;
  const MicroBatch batch = Masked(spec, 0, Rows(0, 300, 10));
  std::vector<int> places(10);
  for (size_t row = 0; row < 300; ++row) {
    int labels = 0;
    for (size_t j = 0; j < 10; ++j) {
      if (batch.labels[row * 10 + j] == kIgnoreLabel) continue;
      ++labels;
      ++places[j];
    }
    ASSERT_EQ(labels, 1) << row;
  }
  for (const int count : places) EXPECT_GT(count, 8) << "of 300, every place has its share";
  MicroBatch special = Rows(0, 1, 2);
  special.tokens = {1, 2};
  EXPECT_EQ(CountedTokens(Masked(spec, 0, special)), 0u);
}

// tests/oracles/masked_tokens.py 0x123456789abcdef 0x300000002 0x500000000 24 1000
TEST(MaskTokens, GivesTheGoldenChoice) {
  JobSpec spec = Spec();
  spec.training.seed = 0x123456789abcdef;
  const MicroBatch batch = Masked(spec, 0x500000000, Rows(0, 1, 24, 0x300000002));
  EXPECT_EQ(batch.tokens, (Ids{8,  9,  7,  11, 12, 753, 14, 15, 16, 17, 18, 19,
                               20, 21, 22, 23, 24, 25,  26, 27, 28, 29, 7,  31}));
  Ids labels(24, kIgnoreLabel);
  for (const int32_t place : {2, 5, 11, 17, 22}) labels[place] = place + 8;
  EXPECT_EQ(batch.labels, labels);
}

}  // namespace
}  // namespace eps
