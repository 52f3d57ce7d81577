#include "worker/data/batch_source.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/job/data_position.h"
#include "gtest/gtest.h"
#include "worker/data/sample_source.h"
#include "worker/data/testing/write_data_file.h"

namespace eps {
namespace {

class BatchSourceTest : public testing::Test {
 protected:
  static JobSpec Spec(DataOrder order, uint64_t tokens) {
    JobSpec spec;
    spec.training.steps = 10;
    spec.training.micro_batch_size = 2;
    spec.training.micro_batches = 2;
    spec.training.parts = 2;
    spec.training.seq_len = 4;
    spec.data.order = order;
    spec.data.tokens = tokens;
    return spec;
  }
};

TEST_F(BatchSourceTest, SourcesKeepTheirSpec) {
  const auto data = *SampleSource::Open({WriteTestFile("d.txt", std::string(41, 'a'))}, {256});
  JobSpec spec = Spec(DataOrder::kSequential, 41);
  const auto batches = NewBatchSource(spec, *data);
  const auto empty = NewEmptyBatchSource(spec);
  const auto held_out = *NewEvaluationSource(spec, *data, 0);
  const auto empty_held_out = NewEmptyEvaluationSource(spec, 5);
  spec = JobSpec();  // as a worker that joins the next term drops the job of the last one
  EXPECT_EQ(batches->Get(Step(1), 3)->tokens.size(), 8u);
  EXPECT_EQ(empty->Get(Step(1), 3)->seq_len, 4u);
  EXPECT_EQ(held_out->Get(0)->tokens.size(), 8u);
  EXPECT_EQ(empty_held_out->Get(0)->seq_len, 4u);
}

TEST_F(BatchSourceTest, CutsMicroBatchesAtTheSpecsSamples) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 41; ++i) tokens.push_back(i);
  auto data = SampleSource::Open({WriteTestFile("d.bin", ColumnBytes<uint16_t>(tokens))}, {100});
  ASSERT_TRUE(data.ok());
  for (const DataOrder order : {DataOrder::kSequential, DataOrder::kShuffled}) {
    const JobSpec spec = Spec(order, 41);
    auto source = NewBatchSource(spec, **data);
    for (uint64_t step = 1; step <= 3; ++step) {
      for (uint32_t index = 0; index < 4; ++index) {
        auto batch = source->Get(Step(step), index);
        ASSERT_TRUE(batch.ok()) << batch.status();
        EXPECT_EQ(batch->step, Step(step));
        EXPECT_EQ(batch->index, index);
        EXPECT_EQ(batch->samples, 2u);
        EXPECT_EQ(batch->seq_len, 4u);
        ASSERT_EQ(batch->tokens.size(), 8u);
        ASSERT_EQ(batch->labels.size(), 8u);
        for (uint32_t slot = 0; slot < 2; ++slot) {
          const uint64_t first = 4 * SampleIndex(spec, Step(step), index, slot);
          for (uint32_t i = 0; i < 4; ++i) {
            EXPECT_EQ(batch->tokens[slot * 4 + i], static_cast<int32_t>(first + i));
            EXPECT_EQ(batch->labels[slot * 4 + i], static_cast<int32_t>(first + i + 1));
          }
        }
      }
    }
  }
}

TEST_F(BatchSourceTest, RefusesDataOfAnotherLength) {
  auto data = SampleSource::Open(
      {WriteTestFile("d.bin", ColumnBytes<uint16_t>(std::vector<uint16_t>(41, 1)))}, {100});
  ASSERT_TRUE(data.ok());
  const JobSpec spec = Spec(DataOrder::kSequential, 1000);
  auto batch = NewBatchSource(spec, **data)->Get(Step(1), 0);
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(batch.status().message(), "1000")) << batch.status();
  EXPECT_TRUE(absl::StrContains(batch.status().message(), "41")) << batch.status();
}

TEST_F(BatchSourceTest, AnEpochHoldsEverySampleOnce) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 8 * 4 + 1; ++i) tokens.push_back(i);
  auto data = SampleSource::Open({WriteTestFile("d.bin", ColumnBytes<uint16_t>(tokens))}, {100});
  ASSERT_TRUE(data.ok());
  const JobSpec spec = Spec(DataOrder::kShuffled, tokens.size());
  ASSERT_EQ(WholeSamples(spec), spec.samples_per_step()) << "an epoch is one step in this test";
  auto source = NewBatchSource(spec, **data);
  std::set<std::vector<int32_t>> orders;
  for (uint64_t step = 1; step <= 5; ++step) {
    std::vector<int32_t> firsts;
    for (uint32_t index = 0; index < 4; ++index) {
      auto batch = source->Get(Step(step), index);
      ASSERT_TRUE(batch.ok()) << batch.status();
      for (uint32_t slot = 0; slot < batch->samples; ++slot) {
        firsts.push_back(batch->tokens[slot * batch->seq_len]);
      }
    }
    orders.insert(firsts);
    std::sort(firsts.begin(), firsts.end());
    EXPECT_EQ(firsts, (std::vector<int32_t>{0, 4, 8, 12, 16, 20, 24, 28}));
  }
  EXPECT_EQ(orders.size(), 5u) << "every epoch has an order of its own";
}

TEST_F(BatchSourceTest, CutsHeldOutSamplesInTheirOrder) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 7 * 4 + 3; ++i) tokens.push_back(i);
  auto data = SampleSource::Open({WriteTestFile("d.bin", ColumnBytes<uint16_t>(tokens))}, {100},
                                 "data.eval_path");
  ASSERT_TRUE(data.ok());
  const JobSpec spec = Spec(DataOrder::kShuffled, 1000);
  for (const uint64_t samples : {0, 7, 4}) {
    auto source = NewEvaluationSource(spec, **data, samples);
    ASSERT_TRUE(source.ok()) << source.status();
    const uint32_t count = samples == 4 ? 4 : 7;
    EXPECT_EQ((*source)->micro_batches(), (count + 1) / 2);
    std::vector<int32_t> seen;
    for (uint32_t m = 0; m < (*source)->micro_batches(); ++m) {
      auto batch = (*source)->Get(m);
      ASSERT_TRUE(batch.ok()) << batch.status();
      EXPECT_TRUE(batch->held_out);
      EXPECT_EQ(batch->samples, 2 * m + 2 <= count ? 2u : 1u);
      ASSERT_EQ(batch->labels.size(), batch->tokens.size());
      for (size_t i = 0; i < batch->tokens.size(); ++i) {
        EXPECT_EQ(batch->labels[i], batch->tokens[i] + 1);
        seen.push_back(batch->tokens[i]);
      }
    }
    ASSERT_EQ(seen.size(), count * 4);
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int32_t>(i));
    EXPECT_FALSE((*source)->Get((*source)->micro_batches()).ok());
  }
  const absl::Status too_many = NewEvaluationSource(spec, **data, 8).status();
  EXPECT_EQ(too_many.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(too_many.message(), "7 whole samples")) << too_many;
  auto shorter = SampleSource::Open({WriteTestFile("s.bin", ColumnBytes<uint16_t>({1, 2, 3, 4}))},
                                    {100}, "data.eval_path");
  const absl::Status too_short = NewEvaluationSource(spec, **shorter, 0).status();
  EXPECT_EQ(too_short.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(too_short.message(), "4 tokens")) << too_short;
}

TEST_F(BatchSourceTest, CutsRowsAtTheLongestOne) {
  std::vector<uint16_t> tokens(4 * 20, 0);
  const std::vector<uint32_t> lengths = {9, 3, 17, 20};
  for (size_t row = 0; row < 4; ++row) {
    std::fill_n(tokens.begin() + static_cast<int64_t>(20 * row), lengths[row],
                static_cast<uint16_t>(row + 1));
  }
  const std::string path = WriteTestFile(
      "rows.epsd",
      DataFileBytes(
          {{"kind", "rows"}, {"samples", 4}, {"seq_len", 20}, {"vocab_size", 100}},
          {{"tokens", "u16", ColumnBytes(tokens)}, {"lengths", "u32", ColumnBytes(lengths)}}));
  auto data = SampleSource::Open({path}, {100});
  ASSERT_TRUE(data.ok()) << data.status();
  JobSpec spec = Spec(DataOrder::kSequential, 80);
  spec.data.samples = 4;
  spec.training.seq_len = 20;
  spec.training.micro_batch_size = 1;
  const auto source = NewBatchSource(spec, **data);
  const auto held_out = *NewEvaluationSource(spec, **data, 0);
  const std::vector<uint32_t> expected = {16, 8, 20, 20};
  for (uint32_t index = 0; index < 4; ++index) {
    for (const MicroBatch& batch : {*source->Get(Step(1), index), *held_out->Get(index)}) {
      EXPECT_EQ(batch.seq_len, expected[index]);
      EXPECT_EQ(batch.tokens.size(), expected[index]);
      EXPECT_EQ(batch.labels.size(), expected[index]);
      EXPECT_EQ(CountedTokens(batch), lengths[index] - 1);
    }
  }
  spec.training.micro_batch_size = 2;
  EXPECT_EQ(NewBatchSource(spec, **data)->Get(Step(1), 0)->seq_len, 16u);
  EXPECT_EQ(NewBatchSource(spec, **data)->Get(Step(1), 0)->tokens.size(), 32u);
  spec.training.seq_len = 16;
  EXPECT_TRUE(
      absl::StrContains(NewEvaluationSource(spec, **data, 0).status().message(), "rows of 20"));
}

TEST_F(BatchSourceTest, AResumeReadsTheSameSamples) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 400; ++i) tokens.push_back(i * 7919 % 70'000);
  auto data =
      SampleSource::Open({WriteTestFile("a.epsd", StreamFileBytes(tokens, 70'000))}, {70'000});
  ASSERT_TRUE(data.ok()) << data.status();
  const JobSpec spec = Spec(DataOrder::kShuffled, tokens.size());
  const auto whole = NewBatchSource(spec, **data);
  std::vector<std::vector<int32_t>> seen;
  for (uint64_t step = 1; step <= 30; ++step) seen.push_back(whole->Get(Step(step), 3)->tokens);
  for (const uint64_t step : {30, 1, 17}) {
    auto again =
        SampleSource::Open({WriteTestFile("a.epsd", StreamFileBytes(tokens, 70'000))}, {70'000});
    EXPECT_EQ(NewBatchSource(spec, **again)->Get(Step(step), 3)->tokens, seen[step - 1]);
  }
}

TEST_F(BatchSourceTest, RefusesMicroBatchesOutsideTheStep) {
  const JobSpec spec = Spec(DataOrder::kSequential, 1000);
  auto source = NewEmptyBatchSource(spec);
  EXPECT_TRUE(source->Get(Step(1), 3).ok());
  EXPECT_EQ(source->Get(Step(1), 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source->Get(Step(0), 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BatchSourceTest, CountsTheTokensThatTheLossSees) {
  const JobSpec spec = Spec(DataOrder::kSequential, 1000);
  auto batch = NewEmptyBatchSource(spec)->Get(Step(1), 0);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(CountedTokens(*batch), 8u) << "a batch without labels counts every position";
  batch->labels = {1, kIgnoreLabel, 3, 4, kIgnoreLabel, 6, 7, 8};
  EXPECT_EQ(CountedTokens(*batch), 6u);
}

}  // namespace
}  // namespace eps
