#include "compression/codecs/topk/index.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "indexes are little-endian");

namespace eps::topk {
namespace {

uint64_t BitmapBytes(uint64_t n) { return (n + 7) / 8; }

void SetBit(uint64_t element, uint64_t* words) {
  words[element / 64] |= uint64_t{1} << (element % 64);
}

template <class Word>
constexpr uint32_t kEscape = std::numeric_limits<Word>::max();

template <class Word>
uint8_t* WriteWord(uint32_t value, uint8_t* out) {
  const Word word = static_cast<Word>(value);
  std::memcpy(out, &word, sizeof(word));
  return out + sizeof(word);
}

template <class Word>
void WriteDeltas(const uint32_t* indexes, size_t count, uint8_t* out) {
  uint32_t next = 0;  // the smallest index that can follow
  for (size_t i = 0; i < count; ++i) {
    uint32_t gap = indexes[i] - next;
    for (; gap >= kEscape<Word>; gap -= kEscape<Word>) out = WriteWord<Word>(kEscape<Word>, out);
    out = WriteWord<Word>(gap, out);
    next = indexes[i] + 1;
  }
}

absl::Status Beyond(uint64_t i, uint64_t number, uint64_t n) {
  return absl::InvalidArgumentError(
      absl::StrCat("number ", i, " of the index is ", number, ", expected less than ", n));
}

template <class Word>
absl::Status ReadDeltas(const uint8_t* in, size_t bytes, uint64_t count, uint64_t n,
                        uint64_t* words) {
  const uint8_t* const end = in + bytes / sizeof(Word) * sizeof(Word);
  uint64_t next = 0;  // cannot overflow: an index has at most 2^32 bytes
  const uint8_t* p = in;
  for (uint64_t i = 0; i < count; ++i) {
    Word word;
    do {
      if (p == end) {
        return absl::InvalidArgumentError(
            absl::StrCat("the index of ", bytes, " bytes ends within number ", i, " of ", count));
      }
      std::memcpy(&word, p, sizeof(word));
      p += sizeof(word);
      next += word;
    } while (word == kEscape<Word>);
    if (next >= n) return Beyond(i, next, n);
    SetBit(next, words);
    ++next;
  }
  if (p != in + bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the index has ", bytes, " bytes, expected ",
                                                   p - in, " for its ", count, " numbers"));
  }
  return absl::OkStatus();
}

absl::Status ExpectBytes(uint64_t found, uint64_t expected, absl::string_view format) {
  if (found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", format, " index has ", found, " bytes, expected ", expected));
}

absl::Status ReadRaw32(const uint8_t* in, size_t bytes, uint64_t count, uint64_t n,
                       uint64_t* words) {
  const absl::Status size = ExpectBytes(bytes, 4 * count, "raw32");
  if (!size.ok()) return size;
  uint64_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t number;
    std::memcpy(&number, in + 4 * i, sizeof(number));
    if (number < next) {
      return absl::InvalidArgumentError(absl::StrCat("number ", i, " of the index is ", number,
                                                     ", expected more than ", next - 1,
                                                     ", the previous one"));
    }
    if (number >= n) return Beyond(i, number, n);
    SetBit(number, words);
    next = uint64_t{number} + 1;
  }
  return absl::OkStatus();
}

absl::Status ReadBitmap(const uint8_t* in, size_t bytes, uint64_t n, uint64_t* words) {
  const absl::Status size = ExpectBytes(bytes, BitmapBytes(n), "bitmap");
  if (!size.ok()) return size;
  if (n % 8 != 0 && in[bytes - 1] >> (n % 8) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the bitmap has a bit set after its ", n, " elements"));
  }
  std::memcpy(words, in, bytes);
  return absl::OkStatus();
}

}  // namespace

IndexSize Raw32Index(uint64_t count) { return {IndexFormat::kRaw32, 4 * count}; }

IndexSize ShortestIndex(const uint32_t* indexes, size_t count, uint64_t n) {
  const uint64_t bitmap = BitmapBytes(n);
  // Each index takes at least one byte, so if `count` exceeds the bitmap, nothing else can be
  // shorter.
  if (count > bitmap) return {IndexFormat::kBitmap, bitmap};
  uint64_t delta8 = count;
  uint64_t delta16 = count;
  uint32_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t gap = indexes[i] - next;
    delta8 += gap / kEscape<uint8_t>;
    delta16 += gap / kEscape<uint16_t>;
    next = indexes[i] + 1;
  }
  delta16 *= 2;
  if (delta8 <= std::min(delta16, bitmap)) return {IndexFormat::kDelta8, delta8};
  if (delta16 <= bitmap) return {IndexFormat::kDelta16, delta16};
  return {IndexFormat::kBitmap, bitmap};
}

uint64_t MaxShortestIndex(uint64_t count, uint64_t n) {
  // All gaps together are at most n - count, and a single gap needs the most escapes.
  const uint64_t gaps = n - count;
  return std::min(
      {count + gaps / kEscape<uint8_t>, 2 * (count + gaps / kEscape<uint16_t>), BitmapBytes(n)});
}

void WriteIndex(IndexFormat format, const uint32_t* indexes, size_t count, uint64_t n,
                uint8_t* out) {
  switch (format) {
    case IndexFormat::kRaw32:
      if (count > 0) std::memcpy(out, indexes, 4 * count);
      return;
    case IndexFormat::kDelta8:
      return WriteDeltas<uint8_t>(indexes, count, out);
    case IndexFormat::kDelta16:
      return WriteDeltas<uint16_t>(indexes, count, out);
    case IndexFormat::kBitmap:
      std::memset(out, 0, BitmapBytes(n));
      for (size_t i = 0; i < count; ++i) {
        out[indexes[i] / 8] = static_cast<uint8_t>(out[indexes[i] / 8] | 1u << indexes[i] % 8);
      }
      return;
  }
}

absl::Status ReadIndex(uint8_t format, const uint8_t* in, size_t bytes, uint64_t count, uint64_t n,
                       uint64_t* words) {
  std::memset(words, 0, BitmapWords(n) * sizeof(*words));
  switch (static_cast<IndexFormat>(format)) {
    case IndexFormat::kRaw32:
      return ReadRaw32(in, bytes, count, n, words);
    case IndexFormat::kDelta8:
      return ReadDeltas<uint8_t>(in, bytes, count, n, words);
    case IndexFormat::kDelta16:
      return ReadDeltas<uint16_t>(in, bytes, count, n, words);
    case IndexFormat::kBitmap:
      return ReadBitmap(in, bytes, n, words);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("index format ", static_cast<int>(format), " is unknown, expected 0 to 3"));
}

}  // namespace eps::topk
