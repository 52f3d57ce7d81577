#include "worker/data/sample_source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"
#include "worker/data/quickstart_texts.h"
#include "worker/data/testing/write_data_file.h"

namespace eps {
namespace {

class SampleSourceTest : public testing::Test {
 protected:
  // Returns all ids of a stream: those of its only sample of the greatest length, and the label of
  // the last one.
  static std::vector<int32_t> All(const SampleSource& data) {
    MicroBatch batch;
    batch.seq_len = static_cast<uint32_t>(data.tokens() - 1);
    data.Read(0, &batch);
    batch.tokens.push_back(batch.labels.back());
    return batch.tokens;
  }
};

TEST_F(SampleSourceTest, JoinsTextFilesInTheOrderGiven) {
  const std::string b = WriteTestFile("b.txt", "xy\xff");
  const std::string a = WriteTestFile("a.txt", "12");
  auto data = SampleSource::Open({b, a}, {256});
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->tokens(), 5u);
  EXPECT_EQ(All(**data), (std::vector<int32_t>{'x', 'y', 0xff, '1', '2'}));
}

TEST_F(SampleSourceTest, ReadsABinAsLittleEndianUint16) {
  auto data = SampleSource::Open(
      {WriteTestFile("d.bin", ColumnBytes<uint16_t>({1, 256, 50256, 65535}))}, {50257});
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->tokens(), 4u);
  EXPECT_EQ(All(**data), (std::vector<int32_t>{1, 256, 50256, 65535}));
}

TEST_F(SampleSourceTest, DigestsTheTokensAndNotTheFiles) {
  const std::string text(100'001, 'a');
  auto as_text = SampleSource::Open({WriteTestFile("d.txt", text)}, {256});
  auto as_bin = SampleSource::Open(
      {WriteTestFile("d.bin", ColumnBytes<uint16_t>(std::vector<uint16_t>(100'001, 'a')))}, {256});
  ASSERT_TRUE(as_text.ok() && as_bin.ok());
  EXPECT_EQ((*as_text)->Sha256Hex(), (*as_bin)->Sha256Hex());
  EXPECT_EQ((*as_bin)->Sha256Hex(),
            ToHex(Sha256Of(ColumnBytes<uint16_t>(std::vector<uint16_t>(100'001, 'a')))));
}

TEST_F(SampleSourceTest, ComputesTheEntropyOfTheFrequencies) {
  auto data = SampleSource::Open({WriteTestFile("d.txt", "aabc")}, {256});
  ASSERT_TRUE(data.ok());
  EXPECT_NEAR((*data)->UnigramEntropy(), 1.5 * std::log(2.0), 1e-12);
}

TEST_F(SampleSourceTest, NamesTheFirstIdOutsideTheVocabulary) {
  auto data =
      SampleSource::Open({WriteTestFile("d.bin", ColumnBytes<uint16_t>({1, 99, 100, 101}))}, {100});
  ASSERT_TRUE(data.ok());
  EXPECT_TRUE((*data)->CheckContent({102}).ok());
  const absl::Status status = (*data)->CheckContent({100});
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(absl::StrContains(status.message(), "token 2 ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "d.bin")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "id 100")) << status;
}

TEST_F(SampleSourceTest, RefusesDataThatItCannotTrainOn) {
  const std::string text = WriteTestFile("t.txt", "abc");
  const std::string bin = WriteTestFile("t.bin", ColumnBytes<uint16_t>({1, 2}));
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
      {{text, WriteTestFile("empty.txt", "")},
       256,
       absl::StatusCode::kInvalidArgument,
       "empty.txt"},
      {{WriteTestFile("empty.bin", "")}, 256, absl::StatusCode::kInvalidArgument, "empty.bin"},
      {{WriteTestFile("odd.bin", "123")}, 256, absl::StatusCode::kInvalidArgument, "3 bytes"},
      {{text, bin}, 256, absl::StatusCode::kInvalidArgument, "2 files, 1 of them .bin"},
      {{bin, bin}, 256, absl::StatusCode::kInvalidArgument, "2 files, 2 of them .bin"},
      {{text, "a.epsd"}, 256, absl::StatusCode::kInvalidArgument, "1 of them .bin or .epsd"},
      {{"/nonexistent/x.epsd"}, 256, absl::StatusCode::kNotFound, "/nonexistent/x.epsd"},
      {{WriteTestFile("empty.epsd", "")}, 256, absl::StatusCode::kInvalidArgument, "EPSDATA1"},
      {{text}, 50257, absl::StatusCode::kInvalidArgument, "eps data make text"},
      {{"/"}, 256, absl::StatusCode::kInvalidArgument, "not a regular file"},
  };
  for (const Case& c : cases) {
    auto data = SampleSource::Open(c.paths, {c.vocab_size});
    EXPECT_EQ(data.status().code(), c.code) << c.named << ": " << data.status();
    EXPECT_TRUE(absl::StrContains(data.status().message(), c.named)) << data.status();
  }
}

TEST_F(SampleSourceTest, MapsABinInsteadOfReadingIt) {
  // A sparse file that would need 8 GiB and most of a minute to read.
  const std::string path = WriteTestFile("sparse.bin", ColumnBytes<uint16_t>({7, 8}));
  std::filesystem::resize_file(path, uint64_t{8} << 30);
  auto data = SampleSource::Open({path}, {100});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->tokens(), uint64_t{4} << 30);
  MicroBatch batch;
  batch.seq_len = 1;
  (*data)->Read(0, &batch);
  (*data)->Read((uint64_t{4} << 30) - 2, &batch);
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{8, 0}));
  std::filesystem::remove(path);
}

TEST_F(SampleSourceTest, ErrorsNameTheConfigurationKey) {
  for (const std::string& path : {std::string("/nonexistent/x.bin"), WriteTestFile("empty.bin", ""),
                                  WriteTestFile("odd.bin", "123"), std::string("/")}) {
    const absl::Status status = SampleSource::Open({path}, {256}, "data.eval_path").status();
    EXPECT_TRUE(absl::StrContains(status.message(), "data.eval_path")) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "data.path")) << status;
  }
}

TEST_F(SampleSourceTest, ReadsStreamsOfEitherWidth) {
  const std::vector<uint32_t> narrow = {0, 1, 65'535};
  const std::vector<uint32_t> wide = {65'535, 65'536, 128'255, 3};
  auto data =
      SampleSource::Open({WriteTestFile("a.epsd", StreamFileBytes(narrow, 65'536))}, {65'536});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(All(**data), (std::vector<int32_t>{0, 1, 65'535}));
  data = SampleSource::Open({WriteTestFile("b.epsd", StreamFileBytes(wide, 128'256))}, {128'256});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(All(**data), (std::vector<int32_t>{65'535, 65'536, 128'255, 3}));
  EXPECT_EQ((*data)->samples(1), 3u);
  EXPECT_EQ((*data)->rows(), 0u);
  EXPECT_TRUE((*data)->CheckContent({128'256}).ok());
  EXPECT_TRUE(absl::StrContains((*data)->CheckContent({128'255}).message(), "token 2 of"));
  EXPECT_NEAR((*data)->UnigramEntropy(), std::log(4.0), 1e-12);
  EXPECT_EQ((*data)->Sha256Hex(), ToHex(Sha256Of(ColumnBytes(wide))));
}

TEST_F(SampleSourceTest, StreamsAndBinsAreOneData) {
  auto stream =
      SampleSource::Open({WriteTestFile("a.epsd", StreamFileBytes({5, 6, 7}, 256))}, {256});
  auto bin = SampleSource::Open({WriteTestFile("a.bin", ColumnBytes<uint16_t>({5, 6, 7}))}, {256});
  ASSERT_TRUE(stream.ok() && bin.ok());
  EXPECT_EQ((*stream)->Sha256Hex(), (*bin)->Sha256Hex());
  EXPECT_EQ((*stream)->tokens(), (*bin)->tokens());
}

TEST_F(SampleSourceTest, RefusesTheDataOfAnotherTokenizer) {
  const std::string theirs(64, 'a'), ours(64, 'b');
  const std::string path = WriteTestFile("a.epsd", StreamFileBytes({5, 6}, 300, theirs));
  const auto refusal = [&](const DataNeeds& needs) {
    const absl::Status status = SampleSource::Open({path}, needs).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
    return std::string(status.message());
  };
  const std::string other = refusal({300, ours});
  EXPECT_TRUE(absl::StrContains(other, theirs) && absl::StrContains(other, ours)) << other;
  const std::string larger = refusal({299, theirs});
  EXPECT_TRUE(absl::StrContains(larger, "300") && absl::StrContains(larger, "299")) << larger;
  for (const DataNeeds& needs : {DataNeeds{300, theirs}, DataNeeds{301, theirs}, DataNeeds{300}}) {
    EXPECT_TRUE(SampleSource::Open({path}, needs).ok());
  }
  const std::string bytes = WriteTestFile("b.epsd", StreamFileBytes({5, 6}, 256));
  EXPECT_TRUE(SampleSource::Open({bytes}, {256, ours}).ok()) << "bytes have no tokenizer";
}

TEST_F(SampleSourceTest, RefusesLabelsOfAnotherKind) {
  const nlohmann::json fields = {
      {"kind", "rows"}, {"samples", 1}, {"seq_len", 2}, {"vocab_size", 256}};
  const TestColumn tokens = {"tokens", "u16", ColumnBytes<uint16_t>({1, 2})};
  const std::string files[] = {
      WriteTestFile("tokens.epsd", DataFileBytes(fields, {tokens})),
      WriteTestFile("classes.epsd",
                    DataFileBytes(fields, {tokens, {"labels", "i32", ColumnBytes<int32_t>({1})}})),
      WriteTestFile("numbers.epsd",
                    DataFileBytes(fields, {tokens, {"labels", "f32", ColumnBytes<float>({1})}}))};
  const LabelKind kinds[] = {LabelKind::kTokens, LabelKind::kClasses, LabelKind::kNumbers};
  for (int file = 0; file < 3; ++file) {
    for (int model = 0; model < 3; ++model) {
      const absl::Status status =
          SampleSource::Open({files[file]}, {256, "", kinds[model]}).status();
      EXPECT_EQ(status.ok(), file == model) << files[file] << ": " << status;
      if (file == model) continue;
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid);
      EXPECT_TRUE(absl::StrContains(status.message(), "the model predicts")) << status;
    }
  }
  const absl::Status none = SampleSource::Open({files[1]}, {0, "", LabelKind::kClasses}).status();
  EXPECT_TRUE(absl::StrContains(none.message(), "reads none")) << none;
  const absl::Status text =
      SampleSource::Open({WriteTestFile("a.txt", "ab")}, {256, "", LabelKind::kNumbers}).status();
  EXPECT_TRUE(absl::StrContains(text.message(), "eps data make pairs")) << text;
}

TEST_F(SampleSourceTest, MaskedModelsReadTokensWithoutLabels) {
  const nlohmann::json fields = {{"kind", "rows"},
                                 {"samples", 1},
                                 {"seq_len", 2},
                                 {"vocab_size", 256},
                                 {"masking", {{"mask_token", 4}, {"special_tokens", {0, 4, 255}}}}};
  const TestColumn tokens = {"tokens", "u16", ColumnBytes<uint16_t>({1, 2})};
  const DataNeeds needs = {256, "", LabelKind::kMaskedTokens};
  auto data =
      SampleSource::Open({WriteTestFile("rows.epsd", DataFileBytes(fields, {tokens}))}, needs);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->masking()->mask_token, 4u);
  EXPECT_EQ((*data)->masking()->special_tokens, (std::vector<uint32_t>{0, 4, 255}));
  data = SampleSource::Open({WriteTestFile("d.epsd", StreamFileBytes({1, 2, 3}, 256))}, needs);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_FALSE((*data)->masking().has_value());
  const absl::Status masked =
      SampleSource::Open(
          {WriteTestFile("masked.epsd",
                         DataFileBytes(fields, {tokens, {"loss_mask", "bit", "\2"}}))},
          needs)
          .status();
  EXPECT_EQ(ExitCodeOf(masked), ExitCode::kDataInvalid);
  EXPECT_TRUE(absl::StrContains(masked.message(), "loss_mask")) << masked;
  const absl::Status labelled =
      SampleSource::Open(
          {WriteTestFile(
              "classes.epsd",
              DataFileBytes(fields, {tokens, {"labels", "i32", ColumnBytes<int32_t>({1})}}))},
          needs)
          .status();
  EXPECT_TRUE(absl::StrContains(labelled.message(), "hidden from it")) << labelled;
}

TEST_F(SampleSourceTest, RefusesImagesOfAnotherShape) {
  const nlohmann::json image = {
      {"channels", 1}, {"height", 2}, {"width", 3}, {"mean", {0}}, {"std", {1}}};
  const nlohmann::json fields = {
      {"kind", "rows"}, {"samples", 1}, {"seq_len", 0}, {"vocab_size", 0}, {"image", image}};
  const std::string file = WriteTestFile(
      "images.epsd", DataFileBytes(fields, {{"labels", "i32", ColumnBytes<int32_t>({1})},
                                            {"pixels", "u8", "abcdef"}}));
  DataNeeds needs = {0, "", LabelKind::kClasses, 2};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1, 3, 2}, {3, 2, 1}}) {
    needs.image = shape;
    const absl::Status status = SampleSource::Open({file}, needs).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid);
    EXPECT_TRUE(absl::StrContains(status.message(), "images of 1 x 2 x 3")) << status;
  }
  needs.image = {1, 2, 3};
  const auto data = SampleSource::Open({file}, needs);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE((*data)->CheckContent(needs).ok());
}

TEST_F(SampleSourceTest, RefusesDocumentsThatTheModelMixes) {
  const std::string file = WriteTestFile(
      "packed.epsd",
      DataFileBytes({{"kind", "rows"}, {"samples", 1}, {"seq_len", 4}, {"vocab_size", 256}},
                    {{"tokens", "u16", ColumnBytes<uint16_t>({1, 2, 3, 4})},
                     {"document_starts", "bit", BitRows({{1, 0, 1, 0}})}}));
  DataNeeds needs = {256};
  EXPECT_TRUE(SampleSource::Open({file}, needs).ok());
  needs.separates_documents = false;
  const absl::Status status = SampleSource::Open({file}, needs).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid);
  EXPECT_TRUE(absl::StrContains(status.message(), "--variant=packed")) << status;
}

TEST(QuickstartTextsTest, ListsRegularFilesSorted) {
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

}  // namespace
}  // namespace eps
