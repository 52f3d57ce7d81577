#include "worker/data/row_source.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"
#include "worker/data/testing/write_data_file.h"

namespace eps {
namespace {

constexpr int32_t kNo = kIgnoreLabel;
using Ids = std::vector<int32_t>;

std::shared_ptr<const SampleSource> Open(const std::string& path) {
  auto file = DataFile::Open(path, "data.path");
  EXPECT_TRUE(file.ok()) << file.status();
  return NewRowSource(*std::move(file));
}

// Rows of four tokens with these further columns.
std::shared_ptr<const SampleSource> Rows(const std::vector<uint16_t>& tokens,
                                         std::vector<TestColumn> columns) {
  columns.insert(columns.begin(), {"tokens", "u16", ColumnBytes(tokens)});
  return Open(WriteTestFile(
      "epsd",
      DataFileBytes(
          {{"kind", "rows"}, {"samples", tokens.size() / 4}, {"seq_len", 4}, {"vocab_size", 100}},
          columns)));
}

MicroBatch Batch(const SampleSource& data, const std::vector<uint64_t>& samples, uint32_t seq_len) {
  MicroBatch batch;
  batch.seq_len = seq_len;
  batch.samples = static_cast<uint32_t>(samples.size());
  for (const uint64_t sample : samples) data.Read(sample, &batch);
  return batch;
}

TEST(RowSourceTest, ReadsTheRowsThatPythonWrites) {
  const auto data = Open("worker/data/testdata/rows.epsd");
  const MicroBatch batch = Batch(*data, {1, 0}, 10);
  EXPECT_EQ(batch.tokens, (Ids{11, 12, 13, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch.labels, (Ids{-1, 3})) << "labels of rows replace those of tokens";
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.lengths, (std::vector<uint32_t>{3, 10}));
  EXPECT_EQ(batch.token_types, (Ids{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1}));
  EXPECT_EQ(CountedTokens(batch), 2u) << "one label for each sample";
  EXPECT_EQ(data->rows(), 2u);
  EXPECT_EQ(data->tokens(), 20u);
  EXPECT_EQ(data->row_tokens(), 10u);
}

TEST(RowSourceTest, ReadsTheImagesThatPythonWrites) {
  const auto data = Open("worker/data/testdata/images.epsd");
  const MicroBatch batch = Batch(*data, {2}, 1);
  EXPECT_EQ(batch.targets, std::vector<float>{2});
  ASSERT_EQ(batch.pixels.size(), 12u);
  EXPECT_FLOAT_EQ(batch.pixels[0], 2.0f / 255);
  EXPECT_FLOAT_EQ(batch.pixels[4], (6.0f / 255 - 0.5f) / 0.5f);
  EXPECT_FLOAT_EQ(batch.pixels[11], (13.0f / 255 - 0.25f) / 2.0f);
  EXPECT_TRUE(batch.tokens.empty() && batch.labels.empty());
  EXPECT_EQ(CountedTokens(batch), 1u);
  EXPECT_TRUE(data->CheckContent({}).ok());
}

TEST(RowSourceTest, TheNextTokenIsTheLabel) {
  const auto data = Rows({1, 2, 3, 4, 5, 6, 7, 8}, {});
  const MicroBatch batch = Batch(*data, {0, 1}, 4);
  EXPECT_EQ(batch.labels, (Ids{2, 3, 4, kNo, 6, 7, 8, kNo}));
  EXPECT_TRUE(batch.positions.empty() && batch.lengths.empty());
}

TEST(RowSourceTest, MaskedTokensAreNoLabels) {
  const auto data = Rows({1, 2, 3, 4}, {{"loss_mask", "bit", BitRows({{1, 0, 1, 0}})}});
  EXPECT_EQ(Batch(*data, {0}, 4).labels, (Ids{kNo, 3, kNo, kNo}));
  EXPECT_EQ(CountedTokens(Batch(*data, {0}, 4)), 1u);
}

TEST(RowSourceTest, FirstTokensOfDocumentsAreNoLabels) {
  const auto data = Rows({1, 2, 3, 4}, {{"document_starts", "bit", BitRows({{1, 0, 1, 0}})}});
  const MicroBatch batch = Batch(*data, {0}, 4);
  EXPECT_EQ(batch.labels, (Ids{2, kNo, 4, kNo}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 0, 1}));
}

TEST(RowSourceTest, PaddingIsNoLabel) {
  const auto data =
      Rows({1, 2, 0, 0, 3, 4, 5, 0}, {{"lengths", "u32", ColumnBytes<uint32_t>({2, 3})}});
  EXPECT_EQ(Batch(*data, {0, 1}, 4).labels, (Ids{2, kNo, kNo, kNo, 4, 5, kNo, kNo}));
  EXPECT_EQ(data->Length(0, 4), 2u);
  const MicroBatch shorter = Batch(*data, {0, 1}, 3);
  EXPECT_EQ(shorter.tokens, (Ids{1, 2, 0, 3, 4, 5}));
  EXPECT_EQ(shorter.labels, (Ids{2, kNo, kNo, 4, 5, kNo}));
}

TEST(RowSourceTest, ChecksTheContent) {
  const struct {
    std::vector<uint16_t> tokens;
    std::vector<TestColumn> columns;
    const char* text;
  } cases[] = {
      {{1, 2, 3, 99, 1, 2, 3, 99}, {}, "row 0 of"},
      {{1, 2, 3, 4, 1, 2, 98, 4}, {}, "row 1 of"},
      {{1, 2, 3, 4}, {{"loss_mask", "bit", BitRows({{1, 0, 0, 0}})}}, "no token to learn"},
      {{1, 0, 0, 0}, {{"lengths", "u32", ColumnBytes<uint32_t>({1})}}, "no token to learn"},
      {{1, 0, 0, 0}, {{"lengths", "u32", ColumnBytes<uint32_t>({0})}}, "the length 0"},
      {{1, 0, 0, 0}, {{"lengths", "u32", ColumnBytes<uint32_t>({5})}}, "the length 5"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Rows(c.tokens, c.columns)->CheckContent({98});
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid) << c.text;
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
  }
  const auto good = Rows({1, 2, 3, 97}, {{"labels", "i32", ColumnBytes<int32_t>({1})}});
  DataNeeds needs = {98, "", LabelKind::kClasses};
  needs.classes = 2;
  EXPECT_TRUE(good->CheckContent(needs).ok());
  needs.classes = 1;
  const absl::Status status = good->CheckContent(needs);
  EXPECT_TRUE(absl::StrContains(status.message(), "class 1, but the model has 1")) << status;
}

TEST(RowSourceTest, CountsOnlyWhatIsLearned) {
  const auto data = Rows({1, 2, 3, 3}, {{"loss_mask", "bit", BitRows({{1, 0, 1, 1}})}});
  EXPECT_EQ(data->UnigramEntropy(), 0.0);
  EXPECT_NEAR(
      Rows({1, 2, 3, 0}, {{"lengths", "u32", ColumnBytes<uint32_t>({3})}})->UnigramEntropy(),
      std::log(2.0), 1e-12);
}

TEST(RowSourceTest, TheDigestCoversEveryColumn) {
  const std::string mask = BitRows({{1, 0, 1, 0}});
  const auto data = Rows({1, 2, 3, 4}, {{"loss_mask", "bit", mask}});
  const std::string lines =
      absl::StrCat(ToHex(Sha256Of(ColumnBytes<uint16_t>({1, 2, 3, 4}))), " tokens u16\n",
                   ToHex(Sha256Of(mask)), " loss_mask bit\n");
  EXPECT_EQ(data->Sha256Hex(), ToHex(Sha256Of(lines)));
}

}  // namespace
}  // namespace eps
