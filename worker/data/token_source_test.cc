#include "worker/data/token_source.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/checksum.h"
#include "gtest/gtest.h"
#include "spec/data_position.h"

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

TEST_F(TokenSourceTest, CutsMicroBatchesAtTheSamplesOfTheSpec) {
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

TEST_F(TokenSourceTest, RefusesDataOfAnotherLengthThanTheJobs) {
  auto data = TokenData::Open({Write("d.bin", Bin(std::vector<uint16_t>(41, 1)))}, 100);
  ASSERT_TRUE(data.ok());
  const JobSpec spec = Spec(DataOrder::kSequential, 1000);
  auto batch = NewTokenBatchSource(spec, **data)->Get(Step(1), 0);
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(batch.status().message(), "1000")) << batch.status();
  EXPECT_TRUE(absl::StrContains(batch.status().message(), "41")) << batch.status();
}

TEST_F(TokenSourceTest, RefusesAMicroBatchThatIsNotOfTheStep) {
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
