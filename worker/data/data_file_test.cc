#include "worker/data/data_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"
#include "worker/data/testing/write_data_file.h"

namespace eps {
namespace {

class DataFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& content) { return WriteTestFile("epsd", content); }
  // Opens a file of this content and returns its refusal.
  absl::Status Refusal(const std::string& content) {
    const absl::Status status = DataFile::Open(Write(content), "data.path").status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), ".epsd (data.path): ")) << status;
    return status;
  }
};

std::string Golden(const std::string& name) {
  std::ostringstream content;
  content << std::ifstream("worker/data/testdata/" + name, std::ios::binary).rdbuf();
  return content.str();
}

TEST_F(DataFileTest, ReadsTheHeadersThatPythonWrites) {
  auto file = DataFile::Open("worker/data/testdata/rows.epsd", "data.path");
  ASSERT_TRUE(file.ok()) << file.status();
  const DataHeader& header = file->header();
  EXPECT_EQ(header.kind, DataKind::kRows);
  EXPECT_EQ(header.samples, 2u);
  EXPECT_EQ(header.seq_len, 10u);
  EXPECT_EQ(header.vocab_size, 300u);
  EXPECT_EQ(header.columns.size(), 6u);
  EXPECT_EQ(header.Find("labels")->type, DataType::kI32);
  EXPECT_EQ(header.Find("pixels"), nullptr);
  EXPECT_EQ(file->bytes(*header.Find("token_types")),
            std::string("\0\0\1\1\1\0\0\0\1\1", 10) + std::string(10, '\0'));
  file = DataFile::Open("worker/data/testdata/images.epsd", "data.path");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().image->std, (std::vector<double>{1, 0.5, 2}));
  file = DataFile::Open("worker/data/testdata/stream_u16.epsd", "data.path");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().tokenizer.substr(0, 4), "abab");
  EXPECT_FALSE(file->header().masking.has_value());
  file = DataFile::Open("worker/data/testdata/masking.epsd", "data.path");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().masking->mask_token, 4u);
  EXPECT_EQ(file->header().masking->special_tokens, (std::vector<uint32_t>{0, 2, 4}));
}

TEST_F(DataFileTest, FindsEveryFlippedBitOfAHeader) {
  const std::string good = Golden("stream_u32.epsd");
  ASSERT_TRUE(ParseDataHeader(good, good.size(), "a.epsd").ok());
  for (size_t at = 0; at < kDataHeaderBytes; ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
    const absl::Status status = ParseDataHeader(damaged, damaged.size(), "a.epsd").status();
    ASSERT_TRUE(absl::StrContains(status.message(), "data file a.epsd: header: ")) << at;
  }
}

TEST_F(DataFileTest, NamesTheColumnThatIsDamaged) {
  const std::string good = Golden("rows.epsd");
  const DataHeader header = *ParseDataHeader(good, good.size(), "");
  for (const DataColumn& column : header.columns) {
    std::string damaged = good;
    char& last = damaged[column.offset + column.bytes - 1];
    last = static_cast<char>(last ^ 0x80);
    const absl::Status status = Refusal(damaged);
    EXPECT_TRUE(absl::StrContains(status.message(),
                                  absl::StrCat("column ", column.name, " (bytes ", column.offset)))
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), column.sha256)) << status;
  }
}

TEST_F(DataFileTest, RefusesFilesOfAnotherSize) {
  const std::string good = Golden("stream_u16.epsd");
  for (const size_t size : {size_t{1}, size_t{4095}, size_t{4096}, good.size() - 1}) {
    EXPECT_FALSE(Refusal(good.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(Refusal(good + "x").ok());
}

TEST_F(DataFileTest, RefusesWhatTheFormatForbids) {
  const std::string good = StreamFileBytes({1, 2, 3}, 256);
  const nlohmann::json fields = nlohmann::json::parse(good.substr(48, 4048).c_str());
  const std::string hash(64, '0');
  const struct {
    std::function<void(nlohmann::json*)> change;
    const char* text;
  } cases[] = {
      {[](auto* f) { (*f)["kind"] = "heap"; }, "heap"},
      {[](auto* f) { (*f)["samples"] = 0; }, "samples is 0"},
      {[](auto* f) { (*f)["samples"] = -1; }, "samples is -1"},
      {[](auto* f) { (*f)["samples"] = 1.5; }, "samples is 1.5"},
      {[](auto* f) { (*f)["samples"] = uint64_t{1} << 37; }, "samples is"},
      {[](auto* f) { (*f)["samples"] = 2; }, "document_ends has 8 bytes; 2 samples have 16"},
      {[](auto* f) { (*f)["seq_len"] = 4; }, "seq_len is 4"},
      {[](auto* f) { (*f)["vocab_size"] = 0; }, "vocab_size is 0"},
      {[](auto* f) { (*f)["vocab_size"] = 65537; }, "stored as u32"},
      {[](auto* f) { (*f)["tokenizer"] = "x"; }, "no SHA-256"},
      {[](auto* f) { (*f)["image"] = nullptr; }, "image is not an object"},
      {[](auto* f) {
         (*f)["masking"] = {{"mask_token", 1}};
       },
       "masking is not an object"},
      {[](auto* f) {
         (*f)["masking"] = {{"mask_token", (*f)["vocab_size"]}, {"special_tokens", {1}}};
       },
       "mask_token is"},
      {[](auto* f) {
         (*f)["masking"] = {{"mask_token", 1}, {"special_tokens", {2, 2}}};
       },
       "special_tokens is no list"},
      {[](auto* f) {
         (*f)["masking"] = {{"mask_token", 1}, {"special_tokens", {1 << 20}}};
       },
       "special_tokens is no list"},
      {[](auto* f) { (*f)["more"] = 1; }, "the keys kind, samples"},
      {[](auto* f) { f->erase("kind"); }, "the keys kind, samples"},
      {[](auto* f) { (*f)["provenance"] = 1; }, "provenance"},
      {[](auto* f) { (*f)["columns"] = 1; }, "columns is no list"},
      {[](auto* f) { (*f)["columns"].clear(); }, "tokens and document_ends"},
      {[](auto* f) { (*f)["columns"][0]["dtype"] = "f16"; }, "dtype \"f16\""},
      {[](auto* f) { (*f)["columns"][0]["dtype"] = "u32"; }, "tokens are u32"},
      {[](auto* f) { (*f)["columns"][0]["bytes"] = 5; }, "5 bytes of u16"},
      {[](auto* f) { (*f)["columns"][0]["bytes"] = 0; }, "0 bytes of u16"},
      {[](auto* f) { (*f)["columns"][0]["offset"] = 0; }, "begins at 0; its place is 4096"},
      {[](auto* f) { (*f)["columns"][0]["sha256"] = "0"; }, "tokens has no SHA-256"},
      {[](auto* f) { (*f)["columns"][0].erase("name"); }, "a column is not an object"},
      {[](auto* f) { std::swap((*f)["columns"][0], (*f)["columns"][1]); }, "in this order"},
      {[&](auto* f) {
         (*f)["columns"].push_back({{"name", "labels"},
                                    {"dtype", "i32"},
                                    {"offset", 12288},
                                    {"bytes", 4},
                                    {"sha256", hash}});
       },
       "labels is unknown"},
  };
  for (const auto& c : cases) {
    nlohmann::json changed = fields;
    c.change(&changed);
    const absl::Status status = Refusal(WithHeaderText(good, changed.dump()));
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << c.text << " in " << status;
  }
  for (const char* text : {"", "{", "[]", "1", "\xff"}) {
    EXPECT_TRUE(absl::StrContains(Refusal(WithHeaderText(good, text)).message(), "not an object"));
  }
}

TEST_F(DataFileTest, RefusesRowsWithoutTheirTokens) {
  const nlohmann::json fields = {
      {"kind", "rows"}, {"samples", 1}, {"seq_len", 0}, {"vocab_size", 0}};
  const TestColumn labels = {"labels", "i32", ColumnBytes<int32_t>({1})};
  EXPECT_TRUE(
      absl::StrContains(Refusal(DataFileBytes(fields, {labels})).message(), "tokens or pixels"));
  nlohmann::json image = fields;
  image["image"] = {{"channels", 1}, {"height", 1}, {"width", 2}, {"mean", {0.0}}, {"std", {1.0}}};
  const TestColumn pixels = {"pixels", "u8", "ab"};
  EXPECT_TRUE(DataFile::Open(Write(DataFileBytes(image, {labels, pixels})), "data.path").ok());
  EXPECT_TRUE(absl::StrContains(
      Refusal(DataFileBytes(image, {{"lengths", "u32", std::string(4, '\1')}, pixels})).message(),
      "needs the column tokens"));
  image["image"]["std"] = {0.0};
  EXPECT_TRUE(absl::StrContains(Refusal(DataFileBytes(image, {labels, pixels})).message(), "std"));
  EXPECT_TRUE(absl::StrContains(Refusal(DataFileBytes(fields, {labels, pixels})).message(),
                                "image and the column pixels"));
}

TEST_F(DataFileTest, OpensLargeFilesByTheirHeader) {
  // A sparse file whose columns would take most of a minute to read.
  std::string file = StreamFileBytes({1, 2}, 256);
  const uint64_t bytes = DataFile::kDigestedBytes + 4096;
  nlohmann::json fields = nlohmann::json::parse(file.substr(48, 4048).c_str());
  fields["columns"][0]["bytes"] = bytes;
  fields["columns"][1]["offset"] = 4096 + bytes;
  const std::string path = Write(WithHeaderText(file.substr(0, 4096), fields.dump()));
  std::filesystem::resize_file(path, 4096 + bytes + 8);
  auto data = DataFile::Open(path, "data.path");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->bytes(data->header().columns[0]).size(), bytes);
  EXPECT_TRUE(absl::StrContains(data->CheckDigests().message(), "column tokens"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace eps
