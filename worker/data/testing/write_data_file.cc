#include "worker/data/testing/write_data_file.h"

#include <cstring>
#include <fstream>

#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr size_t kHeader = 4096;
constexpr size_t kText = 48;
constexpr size_t kDigest = 16;

}  // namespace

std::string BitRows(const std::vector<std::vector<int>>& rows) {
  std::string bytes;
  for (const std::vector<int>& row : rows) {
    std::string packed((row.size() + 7) / 8, '\0');
    for (size_t i = 0; i < row.size(); ++i) {
      packed[i / 8] = static_cast<char>(packed[i / 8] | row[i] << i % 8);
    }
    bytes += packed;
  }
  return bytes;
}

std::string DataFileBytes(nlohmann::json fields, const std::vector<TestColumn>& columns) {
  std::string content(kHeader, '\0');
  fields["columns"] = nlohmann::json::array();
  if (!fields.contains("tokenizer")) fields["tokenizer"] = "";
  if (!fields.contains("provenance")) fields["provenance"] = nlohmann::json::object();
  for (const TestColumn& column : columns) {
    content.resize((content.size() + kHeader - 1) / kHeader * kHeader, '\0');
    fields["columns"].push_back({{"name", column.name},
                                 {"dtype", column.dtype},
                                 {"offset", content.size()},
                                 {"bytes", column.bytes.size()},
                                 {"sha256", ToHex(Sha256Of(column.bytes))}});
    content += column.bytes;
  }
  return WithHeaderText(content, fields.dump());
}

std::string StreamFileBytes(const std::vector<uint32_t>& tokens, uint64_t vocab_size,
                            const std::string& tokenizer) {
  const bool narrow = vocab_size <= 65536;
  const std::vector<uint16_t> short_ids(tokens.begin(), tokens.end());
  return DataFileBytes(
      {{"kind", "stream"},
       {"samples", 1},
       {"seq_len", 0},
       {"vocab_size", vocab_size},
       {"tokenizer", tokenizer}},
      {{"tokens", narrow ? "u16" : "u32", narrow ? ColumnBytes(short_ids) : ColumnBytes(tokens)},
       {"document_ends", "u64", ColumnBytes<uint64_t>({tokens.size()})}});
}

std::string WithHeaderText(const std::string& file, const std::string& text) {
  std::string header(kHeader, '\0');
  const uint32_t numbers[2] = {1, static_cast<uint32_t>(text.size())};
  std::memcpy(header.data(), "EPSDATA1", 8);
  std::memcpy(header.data() + 8, numbers, sizeof(numbers));
  std::memcpy(header.data() + kText, text.data(), std::min(text.size(), kHeader - kText));
  const Sha256Digest digest = Sha256Of(header);
  std::memcpy(header.data() + kDigest, digest.data(), digest.size());
  return header + file.substr(kHeader);
}

std::string WriteTestFile(const std::string& name, const std::string& content) {
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = testing::TempDir() + "/" + test->name() + "." + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

}  // namespace eps
