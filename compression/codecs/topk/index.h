#ifndef EPS_COMPRESSION_CODECS_TOPK_INDEX_H_
#define EPS_COMPRESSION_CODECS_TOPK_INDEX_H_

// The encodings of the indexes of the selected elements: raw32, delta8, delta16, bitmap
// (docs/formats/codecs.md). `n` is the number of elements of the chunk, at most 2^32.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace eps::topk {

enum class IndexFormat : uint8_t { kRaw32 = 0, kDelta8 = 1, kDelta16 = 2, kBitmap = 3 };

// A format and its size.
struct IndexSize {
  IndexFormat format = IndexFormat::kRaw32;
  uint64_t bytes = 0;
};

// Returns the size of a raw32 index.
IndexSize Raw32Index(uint64_t count);
// Returns the shortest format other than raw32; among equals, the one with the lowest number.
// `indexes` are `count` ascending numbers below n.
IndexSize ShortestIndex(const uint32_t* indexes, size_t count, uint64_t n);
// Returns the largest size that ShortestIndex returns for `count` or fewer indexes.
uint64_t MaxShortestIndex(uint64_t count, uint64_t n);

// Writes exactly as many bytes as one of the functions above returned for this format.
void WriteIndex(IndexFormat format, const uint32_t* indexes, size_t count, uint64_t n,
                uint8_t* out);

// Returns the number of words in the bitmap that ReadIndex fills: one per 64 elements, and one more
// for kernels that load whole words at any bit.
constexpr size_t BitmapWords(uint64_t n) { return static_cast<size_t>((n + 63) / 64 + 1); }

// Sets bit i % 64 of word i / 64 for every index i, and clears all other bits of the BitmapWords(n)
// words. The bytes may be hostile: returns InvalidArgument, without the chunk's name, unless they
// are exactly `count` ascending numbers below n. For a bitmap, the caller checks the number of set
// bits.
absl::Status ReadIndex(uint8_t format, const uint8_t* in, size_t bytes, uint64_t count, uint64_t n,
                       uint64_t* words);

}  // namespace eps::topk

#endif  // EPS_COMPRESSION_CODECS_TOPK_INDEX_H_
