#include "compression/codecs/mx/kernels.h"

#include <cstring>

#include "base/numerics/flush_denormals.h"
#include "compression/panel_ahead.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/mx/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// After Highway.
#include "compression/block_pack-inl.h"

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
constexpr int32_t kNaN = 0x7fc00000;
constexpr uint8_t kNaNScale = 255;

// A vector of one to kBlock floats.
using Floats = HWY_CAPPED(float, kBlock);
using Ints = hn::RebindToSigned<Floats>;
using CodeBytes = hn::Rebind<uint8_t, Floats>;
using IntVector = hn::Vec<Ints>;

// ---- Encoding

HWY_INLINE IntVector LoadBits(const float* in) {
  return hn::BitCast(Ints(), hn::LoadU(Floats(), in));
}

HWY_INLINE IntVector MagnitudeOf(IntVector bits) {
  return hn::And(bits, hn::Set(Ints(), kMagnitude));
}

// The biased exponent to which encoding moves magnitudes at the block's scale: high, but low enough
// that the sum below does not overflow, and such that kPower below has an even exponent.
template <int kBits>
constexpr int kTop = kBits == 7 ? 229 : 230;

// The scales that the vector code handles. Others are rare, and RepairBlocks encodes their blocks
// again. Below the range, a zero would not stay zero; above it, sums would overflow. A block of
// zeros needs no repair.
template <int kBits>
constexpr uint8_t kLeastScale = kBits + 2;
template <int kBits>
constexpr uint8_t kMostScale = kTop<kBits>;

// Returns the codes of some elements in the lowest bytes of the lanes, given their bits and, in the
// exponent field of a float, kTop - (E - D) of their pairs, at least 0. The second and third bytes
// are zero. For a scale above kMostScale the result is meaningless, but within the range of codes.
template <int kBits, bool kTruncate>
HWY_INLINE IntVector Codes(IntVector bits, IntVector lift) {
  const Ints di;
  const Floats df;
  // y = |x| * 2^(kTop - (E - D)), so M = y * 2^(126 + kBits - kTop).
  const auto y = hn::BitCast(df, hn::Add(MagnitudeOf(bits), lift));
  // The sum with this power of two has M, rounded to even, in the last bits of its significand.
  constexpr int32_t kPower = (kTop<kBits> + 24 - kBits) << kExponentAt;
  static_assert((kPower >> 8 & 0xffff) == 0, "lets the second and third bytes be zero");
  const auto power = hn::BitCast(df, hn::Set(di, kPower));
  const auto sum = hn::Add(y, power);
  auto m = hn::BitCast(di, sum);
  if constexpr (kTruncate) {
    const auto rounded_up = hn::RebindMask(di, hn::Gt(hn::Sub(sum, power), y));
    m = hn::IfThenElse(rounded_up, hn::Sub(m, hn::Set(di, 1)), m);
  }
  m = hn::Min(m, hn::Set(di, kPower + (1 << kBits) - 1));
  const hn::RebindToUnsigned<Ints> du;
  const auto sign = hn::BitCast(di, hn::ShiftRight<31 - kBits>(hn::BitCast(du, bits)));
  return hn::Or(m, hn::And(sign, hn::Set(di, 1 << kBits)));
}

#if HWY_TARGET == HWY_SCALAR
constexpr bool kWholeBlocks = false;
#else
// True if a vector of bytes holds four whole blocks of codes, so that they are packed together.
constexpr bool kWholeBlocks = hn::MaxLanes(Floats()) == kBlock;

// Returns the lowest bytes of the lanes of four vectors, one vector after the other.
[[maybe_unused]] HWY_INLINE hn::Vec<hn::Repartition<uint8_t, Ints> > FourTogether(IntVector v0,
                                                                                  IntVector v1,
                                                                                  IntVector v2,
                                                                                  IntVector v3) {
  // First collect byte i of each vector in lane i; then gather the bytes of each vector, four per
  // 128 bits.
  alignas(16) static constexpr uint8_t kByVector[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                        2, 6, 10, 14, 3, 7, 11, 15};
  alignas(64) static constexpr int32_t kTogether[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                        2, 6, 10, 14, 3, 7, 11, 15};
  const Ints di;
  const hn::Repartition<uint8_t, Ints> d8;
  const auto mixed = hn::Or(hn::Or(hn::And(v0, hn::Set(di, 0xff)), hn::ShiftLeft<8>(v1)),
                            hn::Or(hn::ShiftLeft<16>(v2), hn::ShiftLeft<24>(v3)));
  const auto apart = hn::TableLookupBytes(hn::BitCast(d8, mixed), hn::LoadDup128(d8, kByVector));
  return hn::BitCast(
      d8, hn::TableLookupLanes(hn::BitCast(di, apart), hn::SetTableIndices(di, kTogether)));
}
#endif

// Stores the codes of four vectors `stride` bytes apart in `out`: packed groups if kWholeBlocks,
// else one byte each. If `exact`, no byte after a group is written; otherwise 16 bytes are written
// from the start of each group.
template <int kBits>
HWY_INLINE void StoreCodes(IntVector v0, IntVector v1, IntVector v2, IntVector v3,
                           [[maybe_unused]] bool exact, uint8_t* out, size_t stride) {
  if constexpr (kWholeBlocks) {
#if HWY_TARGET != HWY_SCALAR
    const hn::Repartition<uint8_t, Ints> d8;
    const auto codes = FourTogether(v0, v1, v2, v3);
    if constexpr (kBits == 7) {
      bp::StoreApart(d8, codes, out, stride);
    } else {
      const auto packed = bp::PackedApart<kBits + 1>(codes);
      if (HWY_LIKELY(!exact)) {
        bp::StoreApart(d8, packed, out, stride);
      } else {
        HWY_ALIGN uint8_t groups[kStep];
        hn::Store(packed, d8, groups);
        for (size_t i = 0; i < 4; ++i) {
          std::memcpy(out + i * stride, groups + i * kBlock, 2 * (kBits + 1));
        }
      }
    }
#endif
  } else {
    const CodeBytes d8;
    const auto mask = hn::Set(Ints(), 0xff);
    hn::StoreU(hn::DemoteTo(d8, hn::And(v0, mask)), d8, out);
    hn::StoreU(hn::DemoteTo(d8, hn::And(v1, mask)), d8, out + stride);
    hn::StoreU(hn::DemoteTo(d8, hn::And(v2, mask)), d8, out + 2 * stride);
    hn::StoreU(hn::DemoteTo(d8, hn::And(v3, mask)), d8, out + 3 * stride);
  }
}

// Prefetch from memory to the second-level cache, and from there to the first.
HWY_INLINE void PrefetchFar(const float* p) { __builtin_prefetch(p, 0, 2); }
HWY_INLINE void PrefetchNear(const float* p) { __builtin_prefetch(p, 0, 3); }
// Prefetches a line that is written soon.
HWY_INLINE void PrefetchToWrite(const char* p) { __builtin_prefetch(p, 1, 3); }

// Encodes sixteen rows of Lanes(Floats) columns, one block per column. Elements of a block are
// `step` apart in `in` and `ahead`, their codes `stride` bytes apart in `codes` (StoreCodes). The
// scales and the micro bytes of the blocks are contiguous.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeAcross(const float* HWY_RESTRICT in, size_t step, const float* ahead,
                             bool exact, uint8_t* HWY_RESTRICT scales, uint8_t* HWY_RESTRICT micro,
                             uint8_t* HWY_RESTRICT codes, size_t stride) {
  const Ints di;
  const Floats df;
  const CodeBytes d8;
  const size_t lanes = hn::Lanes(df);
  // Rows of a matrix are often 4 KiB apart and then map to one set of the cache, which cannot hold
  // them until they are read again; so copy them.
  HWY_ALIGN float copy[kBlock * hn::MaxLanes(Floats())];
  auto largest = hn::Zero(di);
  for (size_t i = 0; i < kBlock; ++i) {
    const auto bits = LoadBits(in + i * step);
    hn::Store(hn::BitCast(df, bits), df, copy + i * lanes);
    largest = hn::Max(largest, MagnitudeOf(bits));
  }
  const auto scale = hn::And(largest, hn::Set(di, kExponent));
  hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kExponentAt>(scale)), d8, scales);
  const auto top = hn::Set(di, kTop<kBits> << kExponentAt);
  const auto lift_if_at_scale =
      hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(di)), hn::Max(hn::Sub(top, scale), hn::Zero(di)));
  // At scale 0 all elements count as zero, which an extra 1 does not change.
  const auto lift_if_below = hn::Add(lift_if_at_scale, hn::Set(di, 1 << kExponentAt));
  auto micros = hn::Zero(di);
  for (size_t i = 0; i < kBlock; i += 4) {
    for (size_t k = i; k < i + 4; ++k) PrefetchFar(ahead + k * step);
    const auto bits0 = LoadBits(copy + i * lanes);
    const auto bits1 = LoadBits(copy + (i + 1) * lanes);
    const auto bits2 = LoadBits(copy + (i + 2) * lanes);
    const auto bits3 = LoadBits(copy + (i + 3) * lanes);
    const auto below01 = hn::Lt(hn::Max(MagnitudeOf(bits0), MagnitudeOf(bits1)), scale);
    const auto below23 = hn::Lt(hn::Max(MagnitudeOf(bits2), MagnitudeOf(bits3)), scale);
    micros = hn::Or(micros, hn::IfThenElseZero(below01, hn::Set(di, 1 << (i / 2))));
    micros = hn::Or(micros, hn::IfThenElseZero(below23, hn::Set(di, 2 << (i / 2))));
    const auto lift01 = hn::IfThenElse(below01, lift_if_below, lift_if_at_scale);
    const auto lift23 = hn::IfThenElse(below23, lift_if_below, lift_if_at_scale);
    StoreCodes<kBits>(Codes<kBits, kTruncate>(bits0, lift01),
                      Codes<kBits, kTruncate>(bits1, lift01),
                      Codes<kBits, kTruncate>(bits2, lift23),
                      Codes<kBits, kTruncate>(bits3, lift23), exact, codes + i * stride, stride);
  }
  hn::StoreU(hn::DemoteTo(d8, micros), d8, micro);
}

#if HWY_TARGET != HWY_SCALAR

// Encodes four consecutive blocks of sixteen elements. Byte k of the 32-bit lanes belongs to block
// k, so exponents are handled for all four at once.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeFourAlong(const float* HWY_RESTRICT in, bool exact,
                                uint8_t* HWY_RESTRICT scales, uint8_t* HWY_RESTRICT micro,
                                uint8_t* HWY_RESTRICT codes, size_t stride) {
  const Ints di;
  const hn::Repartition<uint8_t, Ints> d8;
  const hn::RebindToUnsigned<Ints> du;
  const size_t lanes = hn::Lanes(di);
  // The largest exponents of pairs and of blocks.
  HWY_ALIGN uint8_t pairs[4 * kBlock];
  auto largest = hn::Zero(d8);
  for (size_t i = 0; i < kBlock; i += lanes) {
    const auto bits0 = hn::BitCast(du, LoadBits(in + i));
    const auto bits1 = hn::BitCast(du, LoadBits(in + kBlock + i));
    const auto bits2 = hn::BitCast(du, LoadBits(in + 2 * kBlock + i));
    const auto bits3 = hn::BitCast(du, LoadBits(in + 3 * kBlock + i));
    const auto exponents =
        hn::Or(hn::Or(hn::And(hn::ShiftRight<23>(bits0), hn::Set(du, 0x000000ffu)),
                      hn::And(hn::ShiftRight<15>(bits1), hn::Set(du, 0x0000ff00u))),
               hn::Or(hn::And(hn::ShiftRight<7>(bits2), hn::Set(du, 0x00ff0000u)),
                      hn::And(hn::ShiftLeft<1>(bits3), hn::Set(du, 0xff000000u))));
    const auto pair =
        hn::Max(hn::BitCast(d8, exponents), hn::BitCast(d8, hn::Shuffle2301(exponents)));
    hn::Store(pair, d8, pairs + 4 * i);
    largest = hn::Max(largest, pair);
  }
  largest = hn::Max(largest, hn::BitCast(d8, hn::Shuffle1032(hn::BitCast(du, largest))));
  if constexpr (hn::MaxLanes(Ints()) >= 8) {
    largest = hn::Max(largest, hn::SwapAdjacentBlocks(largest));
  }
  if constexpr (hn::MaxLanes(Ints()) >= 16) {
    largest = hn::Max(largest, hn::ReverseBlocks(d8, largest));
  }
  const uint32_t four_scales = hn::GetLane(hn::BitCast(du, largest));
  std::memcpy(scales, &four_scales, sizeof(four_scales));

  // The lift of a pair at the scale, and below it; blocks of zeros are not lifted.
  const auto lift_if_at_scale = hn::IfThenZeroElse(
      hn::Eq(largest, hn::Zero(d8)), hn::SaturatedSub(hn::Set(d8, kTop<kBits>), largest));
  const auto lift_if_below = hn::Add(lift_if_at_scale, hn::Set(d8, 1));
  uint64_t not_below = 0;  // bit 4 * i + k for element i of block k
  for (size_t i = 0; i < kBlock; i += lanes) {
    const auto at_scale = hn::Eq(hn::Load(d8, pairs + 4 * i), largest);
    uint8_t mask_bytes[8] = {};
    hn::StoreMaskBits(d8, at_scale, mask_bytes);
    uint64_t mask_bits;
    std::memcpy(&mask_bits, mask_bytes, sizeof(mask_bits));
    not_below |= mask_bits << 4 * i;
    const auto lift = hn::BitCast(du, hn::IfThenElse(at_scale, lift_if_at_scale, lift_if_below));
    const auto mask = hn::Set(du, static_cast<uint32_t>(kExponent));
    const auto lift0 = hn::BitCast(di, hn::And(hn::ShiftLeft<23>(lift), mask));
    const auto lift1 = hn::BitCast(di, hn::And(hn::ShiftLeft<15>(lift), mask));
    const auto lift2 = hn::BitCast(di, hn::And(hn::ShiftLeft<7>(lift), mask));
    const auto lift3 = hn::BitCast(di, hn::And(hn::ShiftRight<1>(lift), mask));
    StoreCodes<kBits>(Codes<kBits, kTruncate>(LoadBits(in + i), lift0),
                      Codes<kBits, kTruncate>(LoadBits(in + kBlock + i), lift1),
                      Codes<kBits, kTruncate>(LoadBits(in + 2 * kBlock + i), lift2),
                      Codes<kBits, kTruncate>(LoadBits(in + 3 * kBlock + i), lift3), exact,
                      codes + i, stride);
  }
  for (int k = 0; k < 4; ++k) {
    // Move the first bit of each of eight bytes into the highest byte.
    const uint64_t pair_bits = ~not_below >> k & 0x0101010101010101u;
    micro[k] = static_cast<uint8_t>(pair_bits * 0x0102040810204080u >> 56);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

// Memory that is needed soon: elements laid out like the tile's, and the place of the encoded
// bytes.
struct Ahead {
  const float* in;
  const char* out;
  size_t out_bytes;
};

// Encodes whole blocks: cols is a multiple of kStep; for column blocks, cols and rows are multiples
// of kBlock.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeBlocks(const Tile& tile, const float* in, size_t ld, const Ahead& ahead,
                             const Planes<uint8_t>& out) {
  constexpr size_t kGroupBytes = 2 * (kBits + 1);
  const size_t groups = tile.cols / kBlock;
  // Codes are stored packed in place, or as bytes in a buffer that is packed afterwards.
  HWY_ALIGN uint8_t unpacked[kWholeBlocks || kBits == 7 ? 1 : kRows * kCols];
  constexpr bool kDirect = kWholeBlocks || kBits == 7;
  uint8_t* const codes = kDirect ? out.codes : unpacked;
  constexpr size_t kStride = kDirect ? kGroupBytes : kBlock;  // between groups of 16 codes
  const size_t out_step = ahead.out_bytes * kStep / (tile.rows * tile.cols);
  const char* ahead_out = ahead.out;
  if (tile.by_column) {
    const size_t lanes = hn::Lanes(Floats());
    for (size_t r = 0; r < tile.rows; r += kBlock) {
      const size_t first = r / kBlock * tile.cols;
      for (size_t c = 0; c < tile.cols; c += lanes) {
        for (size_t i = 0; i < lanes * kBlock; i += kStep, ahead_out += out_step) {
          PrefetchToWrite(ahead_out);
        }
        EncodeAcross<kBits, kTruncate>(
            in + r * ld + c, ld, ahead.in + r * ld + c, (groups - c / kBlock) * kGroupBytes < 16,
            out.scales + first + c, out.micro + first + c,
            codes + (r * groups + c / kBlock) * kStride + c % kBlock, groups * kStride);
      }
    }
  } else {
    for (size_t r = 0; r < tile.rows; ++r) {
      for (size_t b = 0; b < groups; b += 4, ahead_out += out_step) {
        const size_t n = r * groups + b;
        const size_t at = r * ld + b * kBlock;
        for (size_t i = 0; i < kStep; i += kBlock) {
          PrefetchFar(ahead.in + at + i);
          PrefetchNear(in + kRowsAhead * ld + at + i);
        }
        PrefetchToWrite(ahead_out);
#if HWY_TARGET == HWY_SCALAR
        for (size_t i = 0; i < 4; ++i) {
          EncodeAcross<kBits, kTruncate>(in + at + i * kBlock, 1, ahead.in, true,
                                         out.scales + n + i, out.micro + n + i,
                                         codes + (n + i) * kBlock, 1);
        }
#else
        EncodeFourAlong<kBits, kTruncate>(in + at, n + 4 == tile.rows * groups, out.scales + n,
                                          out.micro + n, codes + n * kStride, kStride);
#endif
      }
    }
  }
  if constexpr (!kDirect) bp::PackGroups<kBits + 1>(codes, tile.rows * groups, out.codes);
}

// Sets code i of a group.
template <int kBits>
void SetCode(uint32_t code, size_t i, uint8_t* group) {
  const size_t bit = i * (kBits + 1);
  uint8_t* byte = group + bit / 8;
  const uint32_t shifted = code << bit % 8;
  const uint32_t mask = ((1u << (kBits + 1)) - 1) << bit % 8;
  byte[0] = static_cast<uint8_t>((byte[0] & ~mask) | shifted);
  if (mask > 0xff) byte[1] = static_cast<uint8_t>((byte[1] & ~(mask >> 8)) | shifted >> 8);
}

// Returns M for a float's magnitude bits; `exponent` is E - D.
template <int kBits, bool kTruncate>
uint32_t RoundedMagnitude(uint32_t magnitude, uint32_t exponent) {
  const uint32_t own = magnitude >> kExponentAt;
  if (own == 0) return 0;
  const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t drop = 24 - kBits + exponent - own;  // number of low bits to drop, at least 17
  if (drop > 25) return 0;
  uint32_t m = significand >> drop;
  if (!kTruncate) {
    const uint32_t rest = significand & ((1u << drop) - 1);
    const uint32_t half = 1u << (drop - 1);
    if (rest > half || (rest == half && (m & 1) != 0)) ++m;
  }
  return HWY_MIN(m, (1u << kBits) - 1);
}

template <int kBits>
HWY_INLINE bool IsUsual(uint8_t scale) {
  return scale == 0 || (scale >= kLeastScale<kBits> && scale <= kMostScale<kBits>);
}

// Encodes those blocks of an encoded tile again, one by one, whose scales the vector code cannot
// handle. A block with NaN or infinity gets zero for its micro byte and its codes.
template <int kBits, bool kTruncate>
HWY_INLINE void RepairBlocks(const Tile& tile, const float* in, size_t ld,
                             const Planes<uint8_t>& out) {
  const size_t groups = (tile.cols + kBlock - 1) / kBlock;
  const size_t across = tile.by_column ? tile.cols : groups;
  const size_t blocks = (tile.by_column ? (tile.rows + kBlock - 1) / kBlock : tile.rows) * across;
  const hn::ScalableTag<uint8_t> d8;
  const size_t lanes = hn::Lanes(d8);
  for (size_t n = 0; n < blocks; ++n) {
    if (n + lanes <= blocks) {
      const auto scales = hn::LoadU(d8, out.scales + n);
      const auto clamped =
          hn::Max(hn::Min(scales, hn::Set(d8, kMostScale<kBits>)), hn::Set(d8, kLeastScale<kBits>));
      if (hn::AllTrue(d8, hn::Or(hn::Eq(scales, clamped), hn::Eq(scales, hn::Zero(d8))))) {
        n += lanes - 1;
        continue;
      }
    }
    const uint8_t scale = out.scales[n];
    if (IsUsual<kBits>(scale)) continue;
    if (scale == kNaNScale) out.micro[n] = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      const size_t r = tile.by_column ? n / across * kBlock + i : n / across;
      const size_t c = tile.by_column ? n % across : n % across * kBlock + i;
      if (r >= tile.rows) break;
      uint32_t bits = 0;  // codes of padding are also stored
      if (c < tile.cols) std::memcpy(&bits, in + r * ld + c, sizeof(bits));
      uint32_t code = 0;
      if (scale != kNaNScale) {
        const uint32_t exponent = scale - (out.micro[n] >> i / 2 & 1u);
        code =
            RoundedMagnitude<kBits, kTruncate>(bits & kMagnitude, exponent) | bits >> 31 << kBits;
      }
      SetCode<kBits>(code, c % kBlock, out.codes + (r * groups + c / kBlock) * 2 * (kBits + 1));
    }
  }
}

// A ragged tile and the smallest tile of whole blocks that contains it, whose columns are a
// multiple of `unit`.
struct Padded {
  Padded(const Tile& tile, size_t unit) : tile(tile), whole(tile) {
    groups = (tile.cols + kBlock - 1) / kBlock;
    whole.cols = (tile.cols + unit - 1) / unit * unit;
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

// Returns the micro bits of the pairs that cover a block's first n elements.
HWY_INLINE uint8_t PairsOf(size_t n) { return static_cast<uint8_t>((1u << (n + 1) / 2) - 1); }

// If 16 does not divide the axis, its last blocks hold pairs of padding only, whose micro bit must
// be 0.
void ClearPaddingPairs(const Padded& padded, uint8_t* micro) {
  const Tile& tile = padded.tile;
  if (tile.by_column) {
    const uint8_t pairs = PairsOf(tile.rows - (padded.down - 1) * kBlock);
    uint8_t* last = micro + (padded.down - 1) * padded.whole_across;
    for (size_t c = 0; c < padded.whole_across; ++c) last[c] &= pairs;
  } else {
    const uint8_t pairs = PairsOf(tile.cols - (padded.across - 1) * kBlock);
    uint8_t* last = micro + padded.across - 1;
    for (size_t r = 0; r < padded.down; ++r) last[r * padded.whole_across] &= pairs;
  }
}

template <int kBits, bool kTruncate>
void EncodeRagged(const Padded& padded, const float* in, size_t ld, const Planes<uint8_t>& out) {
  const Tile& tile = padded.tile;
  const Tile& whole = padded.whole;
  HWY_ALIGN float values[kRows * kCols];
  uint8_t codes[kRows * kCols];
  uint8_t scales[kMostBlocks];
  uint8_t micro[kMostBlocks];
  std::memset(values, 0, whole.rows * whole.cols * sizeof(float));
  for (size_t r = 0; r < tile.rows; ++r) {
    std::memcpy(values + r * whole.cols, in + r * ld, tile.cols * sizeof(float));
  }
  const Ahead ahead{values, reinterpret_cast<const char*>(codes), 0};
  EncodeBlocks<kBits, kTruncate>(whole, values, whole.cols, ahead, {scales, micro, codes});
  ClearPaddingPairs(padded, micro);
  for (size_t r = 0; r < padded.down; ++r) {
    std::memcpy(out.scales + r * padded.across, scales + r * padded.whole_across, padded.across);
    std::memcpy(out.micro + r * padded.across, micro + r * padded.whole_across, padded.across);
  }
  constexpr size_t kGroupBytes = 2 * (kBits + 1);
  for (size_t r = 0; r < tile.rows; ++r) {
    std::memcpy(out.codes + r * padded.groups * kGroupBytes,
                codes + r * (whole.cols / kBlock) * kGroupBytes, padded.groups * kGroupBytes);
  }
}

template <int kBits, bool kTruncate>
void EncodeTile(const Tile& tile, const float* in, size_t ld, const Planes<uint8_t>& out) {
  const Padded padded(tile, tile.by_column ? kBlock : kStep);
  if (padded.ragged()) {
    EncodeRagged<kBits, kTruncate>(padded, in, ld, out);
  } else {
    const size_t bytes =
        static_cast<size_t>(out.codes - out.scales) + tile.rows * padded.groups * 2 * (kBits + 1);
    EncodeBlocks<kBits, kTruncate>(
        tile, in, ld,
        {in + PanelAhead(ld), reinterpret_cast<const char*>(out.scales + bytes), bytes}, out);
  }
  RepairBlocks<kBits, kTruncate>(tile, in, ld, out);
}

// ---- Decoding

// Returns the values of some elements, given their codes and scales and the mask of set
// microexponents. Without kAny, no value may be a denormal or NaN, which scales from kBits + 1 to
// 254 guarantee.
template <int kBits, bool kAny>
HWY_INLINE hn::Vec<Floats> Values(IntVector codes, IntVector scale, hn::Mask<Ints> micro) {
  const Ints di;
  const Floats df;
  const auto sign =
      hn::And(hn::ShiftLeft<31 - kBits>(codes), hn::Set(di, static_cast<int32_t>(0x80000000u)));
  const auto m = hn::ConvertTo(df, hn::And(codes, hn::Set(di, (1 << kBits) - 1)));
  const auto one_if_micro = hn::IfThenElseZero(micro, hn::Set(di, 1));
  // The biased exponent of the unit of M.
  const auto unit = hn::Sub(hn::Sub(scale, hn::Set(di, kBits - 1)), one_if_micro);
  if constexpr (!kAny) {
    const auto power = hn::Or(hn::ShiftLeft<kExponentAt>(unit), sign);
    return hn::Mul(m, hn::BitCast(df, power));
  } else {
    const auto normal =
        hn::Add(hn::BitCast(di, m), hn::Sub(hn::ShiftLeft<kExponentAt>(unit), hn::Set(di, kOne)));
    // The value in units of 2^-149, which are the bits of a denormal. The computation stays above
    // FP32's denormals, so no mode of the thread affects it. At a scale of kBits + 1 or more, only
    // zero is below 2^23.
    const auto low_scale = hn::Min(scale, hn::Set(di, kBits + 1));
    const auto steps = hn::Sub(hn::Add(low_scale, hn::Set(di, 127 + 23 - kBits)), one_if_micro);
    const auto denormal =
        hn::ConvertTo(di, hn::Mul(m, hn::BitCast(df, hn::ShiftLeft<kExponentAt>(steps))));
    const auto is_denormal = hn::Lt(denormal, hn::Set(di, kSmallestNormal));
    const auto finite = hn::Or(hn::IfThenElse(is_denormal, denormal, normal), sign);
    const auto is_nan = hn::Eq(scale, hn::Set(di, kNaNScale));
    return hn::BitCast(df, hn::IfThenElse(is_nan, hn::Set(di, kNaN), finite));
  }
}

// Replaces the output.
struct Assign {
  template <class DF>
  static HWY_INLINE void Store(DF df, hn::Vec<DF> value, float* out) {
    hn::StoreU(value, df, out);
  }
};

// Adds to the output.
struct Add {
  template <class DF>
  static HWY_INLINE void Store(DF df, hn::Vec<DF> value, float* out) {
    hn::StoreU(hn::Add(hn::LoadU(df, out), value), df, out);
  }
};

HWY_INLINE IntVector Widened(const uint8_t* in) {
  return hn::PromoteTo(Ints(), hn::LoadU(CodeBytes(), in));
}

// The inverse of EncodeAcross.
template <int kBits, bool kAny, class Operation>
HWY_INLINE void DecodeAcross(const uint8_t* HWY_RESTRICT scales, const uint8_t* HWY_RESTRICT micro,
                             const uint8_t* HWY_RESTRICT codes, size_t codes_step,
                             float* HWY_RESTRICT out, size_t step) {
  const Ints di;
  const auto scale = Widened(scales);
  const auto micros = Widened(micro);
  for (size_t i = 0; i < kBlock; ++i) {
    const auto below = hn::TestBit(micros, hn::Set(di, 1 << (i / 2)));
    Operation::Store(Floats(), Values<kBits, kAny>(Widened(codes + i * codes_step), scale, below),
                     out + i * step);
  }
}

#if HWY_TARGET != HWY_SCALAR

// The inverse of EncodeFourAlong for one block.
template <int kBits, bool kAny, class Operation>
HWY_INLINE void DecodeAlong(uint8_t scale, uint8_t micro, const uint8_t* HWY_RESTRICT codes,
                            float* HWY_RESTRICT out) {
  alignas(64) static constexpr int32_t kPairBit[kBlock] = {1,  1,  2,  2,  4,  4,  8,   8,
                                                           16, 16, 32, 32, 64, 64, 128, 128};
  const Ints di;
  const auto scales = hn::Set(di, scale);
  const auto micros = hn::Set(di, micro);
  for (size_t i = 0; i < kBlock; i += hn::Lanes(di)) {
    const auto below = hn::TestBit(micros, hn::Load(di, kPairBit + i));
    Operation::Store(Floats(), Values<kBits, kAny>(Widened(codes + i), scales, below), out + i);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

// Decodes whole blocks only, as EncodeBlocks.
template <int kBits, bool kAny, class Operation>
HWY_INLINE void DecodeBlocks(const Tile& tile, const uint8_t* HWY_RESTRICT scales,
                             const uint8_t* HWY_RESTRICT micro, const uint8_t* HWY_RESTRICT codes,
                             size_t ld, float* HWY_RESTRICT out) {
  if (tile.by_column) {
    const size_t lanes = hn::Lanes(Floats());
    for (size_t r = 0; r < tile.rows; r += kBlock) {
      const size_t first = r / kBlock * tile.cols;
      for (size_t c = 0; c < tile.cols; c += lanes) {
        DecodeAcross<kBits, kAny, Operation>(scales + first + c, micro + first + c,
                                             codes + r * tile.cols + c, tile.cols, out + r * ld + c,
                                             ld);
      }
    }
  } else {
    const size_t blocks = tile.cols / kBlock;
    for (size_t r = 0; r < tile.rows; ++r) {
      for (size_t b = 0; b < blocks; ++b) {
        const size_t n = r * blocks + b;
#if HWY_TARGET == HWY_SCALAR
        DecodeAcross<kBits, kAny, Operation>(scales + n, micro + n, codes + n * kBlock, 1,
                                             out + r * ld + b * kBlock, 1);
#else
        DecodeAlong<kBits, kAny, Operation>(scales[n], micro[n], codes + n * kBlock,
                                            out + r * ld + b * kBlock);
#endif
      }
    }
  }
}

// Compares unsigned bytes, for which not every target has an instruction.
template <class D>
HWY_INLINE hn::Mask<D> AtLeast(D d, hn::Vec<D> v, uint8_t low) {
  return hn::Eq(hn::Max(v, hn::Set(d, low)), v);
}

// Returns true if all of `n` bytes are at least `low` and at most 254.
HWY_INLINE bool AllWithin(const uint8_t* HWY_RESTRICT bytes, size_t n, uint8_t low) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  uint8_t least = 255;
  uint8_t most = 0;
  size_t i = 0;
  if (n >= lanes) {
    auto least_of_lane = hn::LoadU(d, bytes);
    auto most_of_lane = least_of_lane;
    for (; i + lanes <= n; i += lanes) {
      const auto v = hn::LoadU(d, bytes + i);
      least_of_lane = hn::Min(least_of_lane, v);
      most_of_lane = hn::Max(most_of_lane, v);
    }
    if (!hn::AllTrue(d, AtLeast(d, least_of_lane, low)) ||
        !hn::AllTrue(d, hn::Eq(hn::Min(most_of_lane, hn::Set(d, 254)), most_of_lane))) {
      return false;
    }
  }
  for (; i < n; ++i) {
    least = HWY_MIN(least, bytes[i]);
    most = HWY_MAX(most, bytes[i]);
  }
  return least >= low && most <= 254;
}

template <int kBits, class Operation>
HWY_INLINE void DecodeWhole(const Tile& tile, const uint8_t* scales, const uint8_t* micro,
                            const uint8_t* codes, size_t blocks, size_t ld, float* out) {
  if (AllWithin(scales, blocks, kBits + 1)) {
    DecodeBlocks<kBits, false, Operation>(tile, scales, micro, codes, ld, out);
  } else {
    DecodeBlocks<kBits, true, Operation>(tile, scales, micro, codes, ld, out);
  }
}

template <int kBits, class Operation>
void DecodeRagged(const Padded& padded, const uint8_t* codes, const Planes<const uint8_t>& in,
                  size_t ld, float* out) {
  const Tile& tile = padded.tile;
  const Tile& whole = padded.whole;
  HWY_ALIGN float values[kRows * kCols];
  uint8_t scales[kMostBlocks] = {};
  uint8_t micro[kMostBlocks] = {};
  for (size_t r = 0; r < padded.down; ++r) {
    std::memcpy(scales + r * padded.whole_across, in.scales + r * padded.across, padded.across);
    std::memcpy(micro + r * padded.whole_across, in.micro + r * padded.across, padded.across);
  }
  DecodeWhole<kBits, Assign>(whole, scales, micro, codes, padded.down * padded.whole_across,
                             whole.cols, values);
  const size_t lanes = hn::Lanes(Floats());
  const HWY_CAPPED(float, 1) d1;
  for (size_t r = 0; r < tile.rows; ++r) {
    const float* HWY_RESTRICT from = values + r * whole.cols;
    float* HWY_RESTRICT to = out + r * ld;
    size_t c = 0;
    for (; c + lanes <= tile.cols; c += lanes) {
      Operation::Store(Floats(), hn::LoadU(Floats(), from + c), to + c);
    }
    for (; c < tile.cols; ++c) {
      Operation::Store(d1, hn::LoadU(d1, from + c), to + c);
    }
  }
}

template <int kBits, class Operation>
void DecodeTile(const Tile& tile, const Planes<const uint8_t>& in, size_t ld, float* out) {
  const Padded padded(tile, kBlock);
  // Missing rows of a band have no codes either.
  HWY_ALIGN uint8_t unpacked[kRows * kCols];
  const uint8_t* codes = unpacked;
  if (kBits == 7 && !padded.ragged()) {
    codes = in.codes;
  } else {
    const size_t groups = tile.rows * padded.whole.cols / kBlock;
    bp::UnpackGroups<kBits + 1>(in.codes, groups, unpacked);
    std::memset(unpacked + groups * kBlock, 0,
                padded.whole.rows * padded.whole.cols - groups * kBlock);
  }
  if (padded.ragged()) return DecodeRagged<kBits, Operation>(padded, codes, in, ld, out);
  DecodeWhole<kBits, Operation>(tile, in.scales, in.micro, codes, padded.across * padded.down, ld,
                                out);
}

template <bool kTruncate>
void EncodeAs(Format format, const Tile& tile, const float* in, size_t ld,
              const Planes<uint8_t>& out) {
  switch (format) {
    case Format::kMx9:
      return EncodeTile<7, kTruncate>(tile, in, ld, out);
    case Format::kMx6:
      return EncodeTile<4, kTruncate>(tile, in, ld, out);
    case Format::kMx4:
      return EncodeTile<2, kTruncate>(tile, in, ld, out);
  }
}

template <class Operation>
void DecodeAs(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
              float* out) {
  switch (format) {
    case Format::kMx9:
      return DecodeTile<7, Operation>(tile, in, ld, out);
    case Format::kMx6:
      return DecodeTile<4, Operation>(tile, in, ld, out);
    case Format::kMx4:
      return DecodeTile<2, Operation>(tile, in, ld, out);
  }
}

void EncodeNearest(Format format, const Tile& tile, const float* in, size_t ld,
                   const Planes<uint8_t>& out) {
  EncodeAs<false>(format, tile, in, ld, out);
}
void EncodeTruncated(Format format, const Tile& tile, const float* in, size_t ld,
                     const Planes<uint8_t>& out) {
  EncodeAs<true>(format, tile, in, ld, out);
}
void DecodeAssigned(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                    float* out) {
  DecodeAs<Assign>(format, tile, in, ld, out);
}
void DecodeAdded(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                 float* out) {
  DecodeAs<Add>(format, tile, in, ld, out);
}

size_t FindScaleFrom(const uint8_t* HWY_RESTRICT scales, size_t n, uint8_t limit) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    if (!hn::AllFalse(d, AtLeast(d, hn::LoadU(d, scales + i), limit))) break;
  }
  while (i < n && scales[i] < limit) ++i;
  return i;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::mx_kernels {

HWY_EXPORT(EncodeNearest);
HWY_EXPORT(EncodeTruncated);
HWY_EXPORT(DecodeAssigned);
HWY_EXPORT(DecodeAdded);
HWY_EXPORT(FindScaleFrom);

void Encode(Format format, bool truncate, const Tile& tile, const float* in, size_t ld,
            const Planes<uint8_t>& out) {
  if (truncate) {
    HWY_DYNAMIC_DISPATCH(EncodeTruncated)(format, tile, in, ld, out);
  } else {
    HWY_DYNAMIC_DISPATCH(EncodeNearest)(format, tile, in, ld, out);
  }
}

void Decode(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
            float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeAssigned)(format, tile, in, ld, out);
}

// Sets the mode outside of the indirect call, across which the compiler moves no arithmetic.
void Accumulate(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(DecodeAdded)(format, tile, in, ld, out);
}

size_t FirstScaleFrom(const uint8_t* scales, size_t n, uint8_t limit) {
  return HWY_DYNAMIC_DISPATCH(FindScaleFrom)(scales, n, limit);
}

}  // namespace eps::mx_kernels
#endif  // HWY_ONCE
