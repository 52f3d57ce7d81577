#ifndef EPS_COMPRESSION_CODECS_TOPK_INDEX_H_
#define EPS_COMPRESSION_CODECS_TOPK_INDEX_H_

// How the numbers of the chosen elements are written: raw32, delta8, delta16, bitmap
// (docs/formats/codecs.md). `n` is the number of elements of the chunk, at most 2^32.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace eps::topk {

enum class IndexFormat : uint8_t { kRaw32 = 0, kDelta8 = 1, kDelta16 = 2, kBitmap = 3 };

struct IndexSize {
  IndexFormat format = IndexFormat::kRaw32;
  uint64_t bytes = 0;
};

IndexSize Raw32Index(uint64_t count);
// The shortest of the formats other than raw32, among equals the lowest number. `indexes`: `count`
// ascending numbers below n.
IndexSize ShortestIndex(const uint32_t* indexes, size_t count, uint64_t n);
// The most bytes that ShortestIndex gives for any `count` numbers or fewer.
uint64_t MaxShortestIndex(uint64_t count, uint64_t n);

// Writes exactly the bytes that one of the above promised for this format.
void WriteIndex(IndexFormat format, const uint32_t* indexes, size_t count, uint64_t n,
                uint8_t* out);

// Words of the bitmap that ReadIndex fills: 64 elements each, and one more for kernels that load
// whole words at any bit.
constexpr size_t BitmapWords(uint64_t n) { return static_cast<size_t>((n + 63) / 64 + 1); }

// Sets bit i % 64 of word i / 64 for every element number i of the index and no other of the
// BitmapWords(n) words. The bytes may be hostile: InvalidArgument, without the chunk's name, for
// any that are not exactly `count` ascending numbers below n. A bitmap's number of set bits is the
// caller's to check.
absl::Status ReadIndex(uint8_t format, const uint8_t* in, size_t bytes, uint64_t count, uint64_t n,
                       uint64_t* words);

}  // namespace eps::topk

#endif  // EPS_COMPRESSION_CODECS_TOPK_INDEX_H_
