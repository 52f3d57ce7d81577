// The check of bytes that no encoder has written.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/plugin/check/report_lines.h"
#include "compression/plugin/check/checks.h"

namespace eps {
namespace {

constexpr size_t kLengths[] = {1, 3, kShortLengths, 1025};
// Sizes up to it are all tried.
constexpr size_t kShortSizes = 64;
constexpr size_t kOtherSizes = 32;
constexpr size_t kTriesOfSize = 8;
constexpr size_t kChanged = 400;

// Returns bytes in which each one is 0, 255 or any, or which are all zero or all 255.
std::vector<uint8_t> RandomBytes(size_t size, uint64_t seed) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t mixed = MixedNumber(seed, i);
    const uint64_t kind = seed % kTriesOfSize;
    bytes[i] = kind == 0   ? 0
               : kind == 1 ? 255
               : kind < 4  ? static_cast<uint8_t>(mixed % 4 == 0 ? mixed >> 8 : mixed % 2 * 255)
                           : static_cast<uint8_t>(mixed >> 8);
  }
  return bytes;
}

// Changes one to four bytes of an encoding, or its end.
std::vector<uint8_t> ChangedBytes(std::vector<uint8_t> bytes, size_t most, uint64_t seed) {
  const uint64_t mixed = MixedNumber(seed, 0);
  if (mixed % 4 == 0) bytes.resize(std::min(most, (mixed >> 8) % (bytes.size() + 9)), 0x7f);
  for (uint64_t change = 0; change < (mixed >> 2) % 4 + 1 && !bytes.empty(); ++change) {
    const uint64_t how = MixedNumber(seed, change + 1);
    // The beginning more often: there are the numbers that say how long the rest is.
    const size_t reach = how % 2 == 0 ? std::min<size_t>(bytes.size(), 16) : bytes.size();
    uint8_t& byte = bytes[(how >> 8) % reach];
    byte = static_cast<uint8_t>(how % 3 == 0 ? byte ^ (1U << (how >> 40) % 8) : how >> 48);
  }
  return bytes;
}

// Decodes twice. The elements of a refusal may be anything.
std::string Try(CodecArrays* arrays, const std::vector<uint8_t>& bytes, size_t n) {
  const Decoding first = arrays->Decode(bytes, n, {}, 0xa5);
  if (!arrays->SurroundingsAreUntouched()) return "writes outside of its array";
  const CodecPlacement after = {/*at_end=*/false, 0, 0};
  const std::string difference = DecodingDifference(arrays->Decode(bytes, n, after, 0x5a), first);
  if (!difference.empty()) {
    return absl::StrCat("once more in memory that held other bytes: ", difference);
  }
  return arrays->SurroundingsAreUntouched() ? "" : "writes outside of its array";
}

// Returns the sizes of random bytes: all short ones, the largest, and some between.
std::vector<size_t> SizesUpTo(size_t most) {
  std::vector<size_t> sizes;
  for (size_t size = 0; size <= std::min(most, kShortSizes); ++size) sizes.push_back(size);
  for (size_t i = 0; most > kShortSizes && i < kOtherSizes; ++i) {
    sizes.push_back(most - MixedNumber(11, i) % (most - kShortSizes));
  }
  sizes.push_back(most);
  return sizes;
}

std::string CheckRandom(CodecArrays* arrays, size_t n) {
  for (const size_t size : SizesUpTo(arrays->plugin().MostBytes(n))) {
    const std::string where = absl::StrCat("decode, length ", n, ", ", size, " random bytes");
    WriteReportLine(absl::StrCat("at ", where));
    for (uint64_t seed = 0; seed < kTriesOfSize; ++seed) {
      const std::string finding = Try(arrays, RandomBytes(size, seed), n);
      if (!finding.empty()) return absl::StrCat(where, ": ", finding);
    }
  }
  return "";
}

std::string CheckChanged(CodecArrays* arrays, size_t n) {
  const std::string where = absl::StrCat("decode, length ", n, ", an encoding with changed bytes");
  WriteReportLine(absl::StrCat("at ", where));
  const std::vector<uint8_t> encoding =
      arrays->Encode(TrialElements(TrialValues::kUsual, n, 12)).bytes;
  const size_t most = arrays->plugin().MostBytes(n);
  for (uint64_t seed = 0; seed < kChanged; ++seed) {
    const std::string finding = Try(arrays, ChangedBytes(encoding, most, seed), n);
    if (!finding.empty()) return absl::StrCat(where, ": ", finding);
  }
  return "";
}

// An encoding of another number of elements.
std::string CheckOtherLengths(CodecArrays* arrays, size_t n) {
  const std::string where = absl::StrCat("decode, length ", n, ", an encoding of another length");
  WriteReportLine(absl::StrCat("at ", where));
  const size_t most = arrays->plugin().MostBytes(n);
  for (const size_t other : {n / 2, n - 1, n + 1, 2 * n}) {
    if (other == 0) continue;
    std::vector<uint8_t> bytes =
        arrays->Encode(TrialElements(TrialValues::kUsual, other, 13)).bytes;
    bytes.resize(std::min(bytes.size(), most));
    const std::string finding = Try(arrays, bytes, n);
    if (!finding.empty()) return absl::StrCat(where, ": ", finding);
  }
  return "";
}

}  // namespace

std::string CheckHostileBytes(CodecTools* tools) {
  for (const size_t n : kLengths) {
    std::string finding = CheckRandom(&tools->arrays(), n);
    if (finding.empty()) finding = CheckChanged(&tools->arrays(), n);
    if (finding.empty()) finding = CheckOtherLengths(&tools->arrays(), n);
    if (!finding.empty()) return finding;
  }
  return "";
}

}  // namespace eps
