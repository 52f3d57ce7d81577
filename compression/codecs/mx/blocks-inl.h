// The types and constants of encoding and decoding mx9, mx6 and mx4, for kernels.cc to include
// inside Highway's foreach_target.

#if defined(EPS_COMPRESSION_CODECS_MX_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_MX_BLOCKS_INL_H_
#undef EPS_COMPRESSION_CODECS_MX_BLOCKS_INL_H_
#else
#define EPS_COMPRESSION_CODECS_MX_BLOCKS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "compression/block_pack-inl.h"
#include "compression/codecs/mx/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace bp = block_pack::HWY_NAMESPACE;

constexpr size_t kBlock = 16;
constexpr size_t kRows = 32;
constexpr size_t kCols = 128;
constexpr size_t kMostBlocks = kRows * kCols / kBlock;
constexpr int kExponentAt = 23;
constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kExponent = 0x7f800000;
constexpr int32_t kSmallestNormal = 0x00800000;
constexpr int32_t kOne = 0x3f800000;
constexpr size_t kStep = 4 * kBlock;  // elements that are encoded together
constexpr size_t kAheadInRow = 1024;  // elements that are prefetched
constexpr int32_t kNaN = 0x7fc00000;
constexpr uint8_t kNaNScale = 255;

// A vector of one to kBlock floats.
using Floats = HWY_CAPPED(float, kBlock);
using Ints = hn::RebindToSigned<Floats>;
using CodeBytes = hn::Rebind<uint8_t, Floats>;
using IntVector = hn::Vec<Ints>;

// A ragged tile and the smallest tile of whole blocks and groups that contains it.
struct Padded {
  explicit Padded(const Tile& tile) : tile(tile), whole(tile) {
    groups = (tile.cols + kBlock - 1) / kBlock;
    whole.cols = groups * kBlock;
    if (tile.by_column) whole.rows = (tile.rows + kBlock - 1) / kBlock * kBlock;
    across = tile.by_column ? tile.cols : groups;
    whole_across = tile.by_column ? whole.cols : whole.cols / kBlock;
    down = tile.by_column ? whole.rows / kBlock : tile.rows;
  }
  bool ragged() const { return whole.cols != tile.cols || whole.rows != tile.rows; }

  Tile tile;
  Tile whole;
  size_t groups;        // stored groups of codes per row
  size_t across;        // stored blocks per row of blocks
  size_t whole_across;  // the same, with blocks of padding only
  size_t down;          // rows of blocks
};

// Prefetch from memory to the second-level cache, and from there to the first.
HWY_INLINE void PrefetchFar(const float* p) { __builtin_prefetch(p, 0, 2); }
HWY_INLINE void PrefetchNear(const float* p) { __builtin_prefetch(p, 0, 3); }
// Prefetches a line that is written soon.
HWY_INLINE void PrefetchToWrite(const void* p) { __builtin_prefetch(p, 1, 3); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_MX_BLOCKS_INL_H_
