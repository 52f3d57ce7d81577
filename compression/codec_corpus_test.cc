// Chunks that attack the codecs, and mutations of them. compression/testdata/make_codec_corpus.py
// generates the corpus; the mutations are the same in every run. EPS_SHORT=1 in the environment
// takes a tenth of them.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/testing/corpus.h"
#include "compression/codec.h"
#include "compression/testing/codec_fuzz.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr char kArchives[] = "compression/testdata";
constexpr size_t kInputs = 544;
constexpr size_t kHeader = 6;  // bytes of an input before the chunk

// Returns the inputs of all archives by name. Each archive holds those of one codec.
std::map<std::string, std::string> Corpus() {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(kArchives)) {
    if (entry.path().extension() != ".tar") continue;
    auto inputs = ReadCorpus(entry.path().string());
    EXPECT_TRUE(inputs.ok()) << inputs.status();
    if (!inputs.ok()) continue;
    const std::string first = inputs->empty() ? "" : inputs->begin()->second;
    for (const auto& [name, bytes] : *inputs) {
      EXPECT_EQ(bytes[0], first[0]) << name << " is for another codec than its archive";
    }
    all.merge(*inputs);
  }
  EXPECT_EQ(all.size(), kInputs) << "make_codec_corpus.py prints the number of inputs";
  return all;
}

// Writes a byte or word at a boundary value: escapes, NaN scales, 2^50, counts.
void WriteBorder(TestRandom* random, std::string* bytes) {
  constexpr uint32_t kWords[] = {0,          1,          0xff,       0x7f,       0x7c,
                                 0xffff,     0x5880,     0x587f,     0x7f80,     0x58800000,
                                 0x587fffff, 0x7f800000, 0x7fc00000, 0xffffffff, 0x80000000};
  const uint32_t word = kWords[random->Next() % std::size(kWords)];
  const size_t size = size_t{1} << random->Next() % 3;
  if (bytes->size() < kHeader + size) return;
  // Half of the writes go to the first bytes, where counts and scales are.
  const size_t room = bytes->size() - kHeader - size + 1;
  const size_t near = std::min<size_t>(room, 16);
  const size_t at = kHeader + random->Next() % (random->Next() % 2 == 0 ? near : room);
  std::memcpy(&(*bytes)[at], &word, size);
}

// Makes one small change. With `keep_size` the length stays the same, because codecs of fixed size
// refuse any other length before they check anything else.
void Mutate(bool keep_size, TestRandom* random, std::string* bytes) {
  const size_t size = bytes->size();
  const size_t at = random->Next() % (size + 1);
  switch (random->Next() % (keep_size ? 4 : 8)) {
    case 0:
      if (at < size) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ 1 << random->Next() % 8);
      break;
    case 1:
      if (at < size) (*bytes)[at] = static_cast<char>(random->Next());
      break;
    case 2:
      WriteBorder(random, bytes);
      break;
    case 3: {  // swap two bytes
      const size_t other = random->Next() % (size + 1);
      if (at < size && other < size) std::swap((*bytes)[at], (*bytes)[other]);
      break;
    }
    case 4:
      bytes->resize(at);
      break;
    case 5:
      bytes->append(random->Next() % 16, static_cast<char>(random->Next()));
      break;
    case 6:
      bytes->insert(at, bytes->substr(random->Next() % (size + 1), random->Next() % 64));
      break;
    default:
      bytes->erase(at, 1 + random->Next() % 8);
  }
}

TEST(CodecCorpusTest, ReadsGoodChunksAndRefusesBadOnes) {
  std::set<int> good;
  std::set<int> bad;
  for (const auto& [name, bytes] : Corpus()) {
    const bool expected = absl::StartsWith(name, "good_");
    ASSERT_TRUE(expected || absl::StartsWith(name, "bad_")) << name;
    EXPECT_EQ(ReadUntrustedChunk(bytes), expected) << name;
    (expected ? good : bad).insert(static_cast<uint8_t>(bytes[0]));
  }
  for (const std::string& name : CodecExamples()) {
    const int number = static_cast<int>((*FindCodec(name))->traits().id);
    EXPECT_EQ(good.count(number), 1u) << name << " has no good chunk in the corpus";
    EXPECT_EQ(bad.count(number), 1u) << name << " has no bad chunk in the corpus";
  }
}

TEST(CodecCorpusTest, MutatedChunksNeverBypassTheChecks) {
  const int mutations_of_each = std::getenv("EPS_SHORT") != nullptr ? 12 : 120;
  uint64_t accepted = 0;
  uint64_t refused = 0;
  uint64_t stream = 0;
  InputInAborts input;
  for (const auto& [name, original] : Corpus()) {
    for (int i = 0; i < mutations_of_each; ++i) {
      TestRandom random(++stream);
      std::string bytes = original;
      const bool keep_size = random.Next() % 4 != 0;
      for (int edits = 1 + random.Next() % 3; edits > 0; --edits) {
        Mutate(keep_size, &random, &bytes);
      }
      input.Set(name, i);
      ++(ReadUntrustedChunk(bytes) ? accepted : refused);
    }
  }
  const uint64_t least = kInputs * mutations_of_each / 6;
  EXPECT_GT(accepted, least) << "other values alone must not be refused";
  EXPECT_GT(refused, least);
}

}  // namespace
}  // namespace eps
