// Chunks that try to fool the codecs, and mutations of them. The corpus is made by
// compression/testdata/make_codec_corpus.py; the mutations are the same in every run.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "compression/codec.h"
#include "compression/testing/codec_fuzz.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr char kCorpus[] = "compression/testdata/codec";
constexpr size_t kHeader = 6;  // of an input, before the chunk
constexpr int kMutationsOfEach = 120;

// The files of the corpus, by name.
std::map<std::string, std::string> Corpus() {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()].assign(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

// A byte or word that is at the border of something: escapes, NaN scales, 2^50, counts.
void WriteBorder(TestRandom* random, std::string* bytes) {
  constexpr uint32_t kWords[] = {0,          1,          0xff,       0x7f,       0x7c,
                                 0xffff,     0x5880,     0x587f,     0x7f80,     0x58800000,
                                 0x587fffff, 0x7f800000, 0x7fc00000, 0xffffffff, 0x80000000};
  const uint32_t word = kWords[random->Next() % std::size(kWords)];
  const size_t size = size_t{1} << random->Next() % 3;
  if (bytes->size() < kHeader + size) return;
  // Half of the time in the first bytes, where counts and scales are.
  const size_t room = bytes->size() - kHeader - size + 1;
  const size_t near = std::min<size_t>(room, 16);
  const size_t at = kHeader + random->Next() % (random->Next() % 2 == 0 ? near : room);
  std::memcpy(&(*bytes)[at], &word, size);
}

// One small change. `keep_size`: codecs of fixed size refuse every other, and look at nothing else.
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
    case 3: {  // two bytes change places
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

TEST(CodecCorpusTest, GoodChunksAreReadAndBadOnesRefused) {
  std::set<int> good;
  std::set<int> bad;
  int files = 0;
  for (const auto& [name, bytes] : Corpus()) {
    const bool expected = absl::StartsWith(name, "good_");
    ASSERT_TRUE(expected || absl::StartsWith(name, "bad_")) << name;
    EXPECT_EQ(ReadUntrustedChunk(bytes), expected) << name;
    (expected ? good : bad).insert(static_cast<uint8_t>(bytes[0]));
    ++files;
  }
  EXPECT_GE(files, 400);
  for (const std::string& name : CodecExamples()) {
    const int number = static_cast<int>((*FindCodec(name))->traits().id);
    EXPECT_EQ(good.count(number), 1u) << name << " has no good chunk in the corpus";
    EXPECT_EQ(bad.count(number), 1u) << name << " has no bad chunk in the corpus";
  }
}

TEST(CodecCorpusTest, NoMutationOfAChunkGetsPastTheChecks) {
  uint64_t accepted = 0;
  uint64_t refused = 0;
  uint64_t stream = 0;
  for (const auto& [name, original] : Corpus()) {
    for (int i = 0; i < kMutationsOfEach; ++i) {
      TestRandom random(++stream);
      std::string bytes = original;
      const bool keep_size = random.Next() % 4 != 0;
      for (int edits = 1 + random.Next() % 3; edits > 0; --edits) {
        Mutate(keep_size, &random, &bytes);
      }
      ++(ReadUntrustedChunk(bytes) ? accepted : refused);
    }
  }
  EXPECT_GT(accepted, 10'000u) << "values that differ are no reason to refuse";
  EXPECT_GT(refused, 10'000u);
}

}  // namespace
}  // namespace eps
