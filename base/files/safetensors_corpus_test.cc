// Files that attack the reader, and mutations of them.
// base/files/testdata/make_safetensors_corpus.py generates the corpus; the mutations are the same
// in every run.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "base/testing/corpus.h"
#include "base/testing/safetensors_fuzz.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr char kCorpus[] = "base/files/testdata/safetensors_corpus.tar";
constexpr size_t kInputs = 75;
constexpr int kMutationsOfEach = 1500;

// Returns the inputs of the corpus by name.
std::map<std::string, std::string> Corpus() {
  auto inputs = ReadCorpus(kCorpus);
  EXPECT_TRUE(inputs.ok()) << inputs.status();
  if (!inputs.ok()) return {};
  EXPECT_EQ(inputs->size(), kInputs);
  return *std::move(inputs);
}

bool Accepts(const std::string& name, const std::string& bytes) {
  return absl::EndsWith(name, ".json") ? ReadUntrustedIndex(bytes)
                                       : ReadUntrustedSafetensors(bytes);
}

// Random bits as a function of (stream, counter) alone.
class Bits {
 public:
  explicit Bits(uint64_t stream) : stream_(stream) {}
  uint64_t Below(uint64_t limit) { return Next() % std::max<uint64_t>(limit, 1); }

 private:
  uint64_t Next() {
    uint64_t z = stream_ * 0x9e3779b97f4a7c15u + ++counter_ * 0xd1342543de82ef95u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  const uint64_t stream_;
  uint64_t counter_ = 0;
};

constexpr const char* kTokens[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   "\"",
                                   "\\",
                                   "-",
                                   "0",
                                   "e9",
                                   "null",
                                   "\"dtype\":\"F16\"",
                                   "\"shape\":[]",
                                   "18446744073709551615",
                                   "9223372036854775808",
                                   "4294967296",
                                   "\\u0000",
                                   "\xf0\x9f",
                                   "../",
                                   "\"__metadata__\":{},"};

void WriteLength(uint64_t length, std::string* bytes) {
  if (bytes->size() >= sizeof(length)) std::memcpy(&(*bytes)[0], &length, sizeof(length));
}

// Makes one small change to the bits, the size, the text or the header's length.
void Mutate(Bits* bits, std::string* bytes) {
  const uint64_t size = bytes->size();
  const uint64_t at = bits->Below(size + 1);
  switch (bits->Below(8)) {
    case 0:
      if (at < size) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << bits->Below(8)));
      break;
    case 1:
      bytes->resize(at);
      break;
    case 2:
      bytes->append(bits->Below(16), static_cast<char>(bits->Below(256)));
      break;
    case 3:
      WriteLength(bits->Below(2) == 0 ? bits->Below(size + 2) : ~uint64_t{0} >> bits->Below(64),
                  bytes);
      break;
    case 4:  // replaces a digit: the text still parses and means something else
      for (size_t i = at; i < size; ++i) {
        if ((*bytes)[i] < '0' || (*bytes)[i] > '9') continue;
        (*bytes)[i] = static_cast<char>('0' + bits->Below(10));
        break;
      }
      break;
    case 5: {  // repeats a piece of the file somewhere else
      const std::string piece = bytes->substr(bits->Below(size), bits->Below(64));
      bytes->insert(at, piece);
      break;
    }
    case 6:
      if (at < size) bytes->erase(at, 1 + bits->Below(8));
      break;
    default:
      bytes->insert(at, kTokens[bits->Below(std::size(kTokens))]);
  }
}

TEST(SafetensorsCorpusTest, ReadsGoodFilesAndRefusesBadOnes) {
  int good = 0;
  int bad = 0;
  for (const auto& [name, bytes] : Corpus()) {
    const bool expected = absl::StartsWith(name, "good_");
    ASSERT_TRUE(expected || absl::StartsWith(name, "bad_")) << name;
    EXPECT_EQ(Accepts(name, bytes), expected) << name;
    ++(expected ? good : bad);
  }
  EXPECT_GE(good, 10);
  EXPECT_GE(bad, 60);
}

TEST(CorpusTest, AbortsNameTheInput) {
  EXPECT_DEATH(
      {
        InputInAborts input;
        input.Set("bad_list.safetensors", 7);
        std::abort();
      },
      "in mutation 7 of bad_list.safetensors");
}

TEST(CorpusTest, DamagedArchivesAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(ReadCorpus("base/files/testdata/gone.tar").status()));
  const auto not_an_archive = ReadCorpus("/proc/self/exe");
  EXPECT_TRUE(absl::IsDataLoss(not_an_archive.status())) << not_an_archive.status();
}

TEST(SafetensorsCorpusTest, MutatedFilesNeverBypassTheChecks) {
  uint64_t accepted = 0;
  uint64_t refused = 0;
  uint64_t stream = 0;
  InputInAborts input;
  for (const auto& [name, original] : Corpus()) {
    for (int i = 0; i < kMutationsOfEach; ++i) {
      Bits bits(++stream);
      std::string bytes = original;
      for (uint64_t edits = 1 + bits.Below(3); edits > 0; --edits) Mutate(&bits, &bytes);
      // Half of the time the length fits the header again, so that its text is parsed.
      if (bytes.size() >= 8 && bits.Below(2) == 0) {
        const size_t end = bytes.rfind('}');
        if (end != std::string::npos && end >= 8) WriteLength(end - 7, &bytes);
      }
      input.Set(name, i);
      ++(Accepts(name, bytes) ? accepted : refused);
    }
  }
  EXPECT_GT(accepted, 1000u) << "mutations that change nothing of the structure are read";
  EXPECT_GT(refused, 10'000u);
}

}  // namespace
}  // namespace eps
