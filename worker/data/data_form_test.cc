#include "worker/data/data_form.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// Returns `width` bytes, little-endian, of each id.
std::string Ids(const std::vector<uint64_t>& ids, int width) {
  std::string bytes;
  for (const uint64_t id : ids) {
    for (int i = 0; i < width; ++i) bytes.push_back(static_cast<char>(id >> 8 * i & 0xff));
  }
  return bytes;
}

// Returns 100 ids below `vocab_size`, in no order.
std::vector<uint64_t> ManyIds(uint64_t vocab_size) {
  std::minstd_rand random(1);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 100; ++i) ids.push_back((random() >> 8) % vocab_size);
  return ids;
}

void ExpectRefused(const absl::Status& status, const std::vector<std::string>& texts) {
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid) << status;
  for (const std::string& text : texts) {
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << text << " in " << status;
  }
}

TEST(DataFormTest, RefusesTextOfOtherForms) {
  const struct {
    const char* path;
    std::string bytes;
    const char* form;
    const char* command;
  } cases[] = {
      {"a.jsonl", "{\"text\": \"a\"}\n", "JSON", "make jsonl a.jsonl"},
      {"a.json", "[1, 2]", "JSON", "make jsonl a.json"},
      {"part-0001", "\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "JSON", "make jsonl part-0001"},
      {"a.csv", "text,label\na,1\n", "CSV", "make csv a.csv"},
      {"a.TSV", "text\tlabel\na\t1\n", "CSV", "make csv a.TSV"},
      {"a.parquet", "x", "Parquet", "make parquet a.parquet"},
      {"a", "PAR1....PAR1", "Parquet", "make parquet a "},
      {"a.arrow", "x", "Arrow", "make parquet a.arrow"},
      {"a", "ARROW1....", "Arrow", "make parquet a "},
      {"a.txt", "\x1f\x8b\x08....", "gzip", "make text a.txt"},
      {"b/a.txt.gz", "x", "gzip", "make text b/a.txt.gz --tokenizer=DIR --out=b/a.epsd"},
      {"a.jsonl.gz", "x", "gzip", "make jsonl a.jsonl.gz --tokenizer=DIR --out=a.epsd"},
      {"a.csv.zst", "\x28\xb5\x2f\xfd....", "zstd", "unpack it first; then make"},
      {"a.txt", std::string("\xfd\x37zXZ\0....", 10), "xz", "make text a.txt"},
      {"a.txt", "BZh91AY&SY....", "bzip2", "make text a.txt"},
      {"a.dat", "EPSDATA1....", ".epsd", "its name must end in .epsd"},
  };
  for (const auto& c : cases) {
    ExpectRefused(CheckTextForm(c.bytes, c.path, "data.eval_path"),
                  {c.path, c.form, "data.eval_path", c.command});
  }
}

TEST(DataFormTest, CommandsCanBePasted) {
  EXPECT_EQ(MakeDataCommand("text", "a b/it's.txt"),
            "eps data make text 'a b/it'\\''s.txt' --tokenizer=DIR --out='a b/it'\\''s.epsd'");
  EXPECT_EQ(MakeDataCommand("text", "./GPL-3"),
            "eps data make text ./GPL-3 --tokenizer=DIR --out=./GPL-3.epsd");
  EXPECT_EQ(MakeDataCommand("text", "a.b/GPL"),
            "eps data make text a.b/GPL --tokenizer=DIR --out=a.b/GPL.epsd");
}

TEST(DataFormTest, AcceptsTextAndWhatIsNamedTxt) {
  const struct {
    const char* path;
    const char* bytes;
  } cases[] = {
      {"GPL-3", "                    GNU GENERAL PUBLIC LICENSE\n"},
      {"a.cc", "{\n  int x;\n}\n"},
      {"a.md", "BZh is the magic number of bzip2, PAR1 the one of Parquet\n"},
      {"a.txt", "{\"text\": \"a\"}\n"},
      {"a.txt", "text,label\na,1\n"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(CheckTextForm(c.bytes, c.path, "data.path").ok()) << c.path;
  }
}

TEST(DataFormTest, RefusesBinsThatAreNotUint16) {
  const struct {
    std::string bytes;
    uint32_t vocab_size;
    const char* found;
  } cases[] = {
      {Ids(ManyIds(256), 4), 256, "uint32"},
      {Ids(ManyIds(50257), 4), 50257, "uint32"},
      {Ids(ManyIds(65536), 4), 65536, "uint32"},
      {Ids(ManyIds(128256), 4), 65536, "uint32"},
      {Ids(ManyIds(128256), 4), 128256, "uint32"},
      {Ids(ManyIds(50257), 8), 65536, "uint64"},
      {Ids(ManyIds(50257), 2), 65537, "65537 ids"},
      {"PAR1....PAR1", 256, "Parquet"},
      {"\x93NUMPY......", 256, "NumPy"},
  };
  for (const auto& c : cases) {
    ExpectRefused(CheckBinForm(c.bytes, c.vocab_size, "a.bin", "data.path"),
                  {c.found, "a.bin", "data.path", "uint16", "eps data make"});
  }
}

TEST(DataFormTest, RefusesBinsOfOddSize) {
  ExpectRefused(CheckBinForm("123", 256, "a.bin", "data.path"), {"3 bytes", "a.bin", "even"});
  ExpectRefused(CheckBinForm("EPSDATA1", 256, "a.bin", "data.path"), {"must end in .epsd"});
}

TEST(DataFormTest, AcceptsUint16OfAnyVocabulary) {
  for (const uint32_t vocab_size : {1u, 2u, 5u, 256u, 50257u, 65536u}) {
    const std::string bytes = Ids(ManyIds(vocab_size), 2);
    const absl::Status status = CheckBinForm(bytes, vocab_size, "a.bin", "data.path");
    EXPECT_TRUE(status.ok()) << vocab_size << ": " << status;
  }
}

}  // namespace
}  // namespace eps
