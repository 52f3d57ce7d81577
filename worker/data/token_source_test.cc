#include "worker/data/token_source.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/checksum.h"
#include "base/job/data_position.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class TokenSourceTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    const char* folder = std::getenv("TEST_TMPDIR");
    const std::string path = std::string(folder != nullptr ? folder : testing::TempDir()) + "/" +
                             testing::UnitTest::GetInstance()->current_test_info()->name() + "." +
                             name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  static std::string Bin(const std::vector<uint16_t>& tokens) {
    std::string bytes;
    for (const uint16_t t : tokens) {
      bytes.push_back(static_cast<char>(t & 0xff));
      bytes.push_back(static_cast<char>(t >> 8));
    }
    return bytes;
  }

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

TEST_F(TokenSourceTest, JoinsTextFilesInTheOrderGiven) {
  const std::string b = Write("b.txt", "xy\xff");
  const std::string a = Write("a.txt", "12");
  auto data = TokenData::Open({b, a}, 256);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->size(), 5u);
  const std::vector<uint16_t> expected = {'x', 'y', 0xff, '1', '2'};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ((**data)[i], expected[i]) << i;
}

TEST_F(TokenSourceTest, ReadsABinAsLittleEndianUint16) {
  auto data = TokenData::Open({Write("d.bin", Bin({1, 256, 50256, 65535}))}, 50257);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->size(), 4u);
  EXPECT_EQ((**data)[1], 256);
  EXPECT_EQ((**data)[2], 50256);
  EXPECT_EQ((**data)[3], 65535);
}

TEST_F(TokenSourceTest, DigestsTheTokensAndNotTheFiles) {
  const std::string text(100'001, 'a');
  auto as_text = TokenData::Open({Write("d.txt", text)}, 256);
  auto as_bin = TokenData::Open({Write("d.bin", Bin(std::vector<uint16_t>(100'001, 'a')))}, 256);
  ASSERT_TRUE(as_text.ok() && as_bin.ok());
  EXPECT_EQ((*as_text)->Sha256Hex(), (*as_bin)->Sha256Hex());
  EXPECT_EQ((*as_bin)->Sha256Hex(), ToHex(Sha256Of(Bin(std::vector<uint16_t>(100'001, 'a')))));
}

TEST_F(TokenSourceTest, ComputesTheEntropyOfTheFrequencies) {
  auto data = TokenData::Open({Write("d.txt", "aabc")}, 256);
  ASSERT_TRUE(data.ok());
  EXPECT_NEAR((*data)->UnigramEntropy(), 1.5 * std::log(2.0), 1e-12);
}

TEST_F(TokenSourceTest, NamesTheFirstIdOutsideTheVocabulary) {
  auto data = TokenData::Open({Write("d.bin", Bin({1, 99, 100, 101}))}, 100);
  ASSERT_TRUE(data.ok());
  EXPECT_TRUE((*data)->CheckIds(102).ok());
  const absl::Status status = (*data)->CheckIds(100);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(absl::StrContains(status.message(), "token 2 ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "d.bin")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "id 100")) << status;
}

TEST_F(TokenSourceTest, RefusesDataThatItCannotTrainOn) {
  const std::string text = Write("t.txt", "abc");
  const std::string bin = Write("t.bin", Bin({1, 2}));
  struct Case {
    std::vector<std::string> paths;
    uint32_t vocab_size;
    absl::StatusCode code;
    std::string named;
  };
  const std::vector<Case> cases = {
      {{}, 256, absl::StatusCode::kInvalidArgument, "data.path"},
      {{"/nonexistent/x.txt"}, 256, absl::StatusCode::kNotFound, "/nonexistent/x.txt"},
      {{"/nonexistent/x.bin"}, 256, absl::StatusCode::kNotFound, "/nonexistent/x.bin"},
      {{text, Write("empty.txt", "")}, 256, absl::StatusCode::kInvalidArgument, "empty.txt"},
      {{Write("empty.bin", "")}, 256, absl::StatusCode::kInvalidArgument, "empty.bin"},
      {{Write("odd.bin", "123")}, 256, absl::StatusCode::kInvalidArgument, "3 bytes"},
      {{text, bin}, 256, absl::StatusCode::kInvalidArgument, "2 files, 1 of them .bin"},
      {{bin, bin}, 256, absl::StatusCode::kInvalidArgument, "2 files, 2 of them .bin"},
      {{text}, 50257, absl::StatusCode::kInvalidArgument, ".bin"},
      {{"/"}, 256, absl::StatusCode::kInvalidArgument, "not a regular file"},
  };
  for (const Case& c : cases) {
    auto data = TokenData::Open(c.paths, c.vocab_size);
    EXPECT_EQ(data.status().code(), c.code) << c.named << ": " << data.status();
    EXPECT_TRUE(absl::StrContains(data.status().message(), c.named)) << data.status();
  }
}

TEST_F(TokenSourceTest, ListsRegularFilesSortedForTheQuickstart) {
  auto files = QuickstartTextFiles();
  if (!std::filesystem::exists("/usr/share/common-licenses")) {
    EXPECT_EQ(files.status().code(), absl::StatusCode::kNotFound);
    return;
  }
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE(std::is_sorted(files->begin(), files->end()));
  for (const std::string& file : *files) {
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(file))) << file;
  }
}

TEST_F(TokenSourceTest, SourcesKeepTheirSpec) {
  const auto data = *TokenData::Open({Write("d.txt", std::string(41, 'a'))}, 256);
  JobSpec spec = Spec(DataOrder::kSequential, 41);
  const auto batches = NewTokenBatchSource(spec, *data);
  const auto empty = NewEmptyBatchSource(spec);
  const auto held_out = *NewTokenEvaluationSource(spec, *data, 0);
  const auto empty_held_out = NewEmptyEvaluationSource(spec, 5);
  spec = JobSpec();  // as a worker that joins the next term drops the job of the last one
  EXPECT_EQ(batches->Get(Step(1), 3)->tokens.size(), 8u);
  EXPECT_EQ(empty->Get(Step(1), 3)->seq_len, 4u);
  EXPECT_EQ(held_out->Get(0)->tokens.size(), 8u);
  EXPECT_EQ(empty_held_out->Get(0)->seq_len, 4u);
}

TEST_F(TokenSourceTest, CutsMicroBatchesAtTheSpecsSamples) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 41; ++i) tokens.push_back(i);
  auto data = TokenData::Open({Write("d.bin", Bin(tokens))}, 100);
  ASSERT_TRUE(data.ok());
  for (const DataOrder order : {DataOrder::kSequential, DataOrder::kShuffled}) {
    const JobSpec spec = Spec(order, 41);
    auto source = NewTokenBatchSource(spec, **data);
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

TEST_F(TokenSourceTest, RefusesDataOfAnotherLength) {
  auto data = TokenData::Open({Write("d.bin", Bin(std::vector<uint16_t>(41, 1)))}, 100);
  ASSERT_TRUE(data.ok());
  const JobSpec spec = Spec(DataOrder::kSequential, 1000);
  auto batch = NewTokenBatchSource(spec, **data)->Get(Step(1), 0);
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(batch.status().message(), "1000")) << batch.status();
  EXPECT_TRUE(absl::StrContains(batch.status().message(), "41")) << batch.status();
}

TEST_F(TokenSourceTest, MapsABinInsteadOfReadingIt) {
  // A sparse file that would need 8 GiB and most of a minute to read.
  const std::string path = Write("sparse.bin", Bin({7, 8}));
  std::filesystem::resize_file(path, uint64_t{8} << 30);
  auto data = TokenData::Open({path}, 100);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->size(), uint64_t{4} << 30);
  EXPECT_EQ((**data)[1], 8);
  EXPECT_EQ((**data)[(uint64_t{4} << 30) - 1], 0);
  std::filesystem::remove(path);
}

TEST_F(TokenSourceTest, AnEpochHoldsEverySampleOnce) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 8 * 4 + 1; ++i) tokens.push_back(i);
  auto data = TokenData::Open({Write("d.bin", Bin(tokens))}, 100);
  ASSERT_TRUE(data.ok());
  const JobSpec spec = Spec(DataOrder::kShuffled, tokens.size());
  ASSERT_EQ(WholeSamples(spec), spec.samples_per_step()) << "an epoch is one step in this test";
  auto source = NewTokenBatchSource(spec, **data);
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

TEST_F(TokenSourceTest, CutsHeldOutSamplesInTheirOrder) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 7 * 4 + 3; ++i) tokens.push_back(i);
  auto data = TokenData::Open({Write("d.bin", Bin(tokens))}, 100, "data.eval_path");
  ASSERT_TRUE(data.ok());
  const JobSpec spec = Spec(DataOrder::kShuffled, 1000);
  for (const uint64_t samples : {0, 7, 4}) {
    auto source = NewTokenEvaluationSource(spec, **data, samples);
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
  const absl::Status too_many = NewTokenEvaluationSource(spec, **data, 8).status();
  EXPECT_EQ(too_many.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(too_many.message(), "7 whole samples")) << too_many;
  auto shorter = TokenData::Open({Write("s.bin", Bin({1, 2, 3, 4}))}, 100, "data.eval_path");
  const absl::Status too_short = NewTokenEvaluationSource(spec, **shorter, 0).status();
  EXPECT_EQ(too_short.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(too_short.message(), "4 tokens")) << too_short;
}

TEST_F(TokenSourceTest, ErrorsNameTheConfigurationKey) {
  for (const std::string& path : {std::string("/nonexistent/x.bin"), Write("empty.bin", ""),
                                  Write("odd.bin", "123"), std::string("/")}) {
    const absl::Status status = TokenData::Open({path}, 256, "data.eval_path").status();
    EXPECT_TRUE(absl::StrContains(status.message(), "data.eval_path")) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "data.path")) << status;
  }
}

TEST_F(TokenSourceTest, RefusesMicroBatchesOutsideTheStep) {
  const JobSpec spec = Spec(DataOrder::kSequential, 1000);
  auto source = NewEmptyBatchSource(spec);
  EXPECT_TRUE(source->Get(Step(1), 3).ok());
  EXPECT_EQ(source->Get(Step(1), 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source->Get(Step(0), 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TokenSourceTest, CountsTheTokensThatTheLossSees) {
  const JobSpec spec = Spec(DataOrder::kSequential, 1000);
  auto batch = NewEmptyBatchSource(spec)->Get(Step(1), 0);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(CountedTokens(*batch), 8u) << "a batch without labels counts every position";
  batch->labels = {1, kIgnoreLabel, 3, 4, kIgnoreLabel, 6, 7, 8};
  EXPECT_EQ(CountedTokens(*batch), 6u);
}

}  // namespace
}  // namespace eps
