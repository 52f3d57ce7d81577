#include "compression/codecs/mx/kernels.h"

#include <cstring>

#include "common/flush_denormals.h"

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
constexpr int32_t kNaN = 0x7fc00000;
constexpr uint8_t kNaNScale = 255;

// At most a block of floats, at least one.
using Floats = HWY_CAPPED(float, kBlock);
using Ints = hn::RebindToSigned<Floats>;
using CodeBytes = hn::Rebind<uint8_t, Floats>;
using IntVector = hn::Vec<Ints>;

// ---- Encoding

// The codes of some elements, by their bits, the exponent bits of their blocks' scales, and where
// their pairs' microexponents are 1. What a scale of 255 gives means nothing.
template <int kBits, bool kTruncate>
HWY_INLINE IntVector Codes(IntVector bits, IntVector scale, hn::Mask<Ints> micro) {
  const Ints di;
  const Floats df;
  const auto magnitude = hn::And(bits, hn::Set(di, kMagnitude));
  // y = |x| / 2^(E - 127), below 2; what is too small for that is too small for any code.
  const auto moved = hn::Sub(magnitude, hn::Sub(scale, hn::Set(di, kOne)));
  const auto normal = hn::Gt(magnitude, hn::Set(di, kSmallestNormal - 1));
  const auto y = hn::BitCast(df, hn::IfThenElseZero(normal, hn::Max(moved, hn::Zero(di))));
  // M = y * 2^(kBits - 1 + D)
  IntVector m;
  if constexpr (kTruncate) {
    const auto factor =
        hn::IfThenElse(hn::RebindMask(df, micro), hn::Set(df, static_cast<float>(1 << kBits)),
                       hn::Set(df, static_cast<float>(1 << (kBits - 1))));
    m = hn::ConvertTo(di, hn::Mul(y, factor));
  } else {
    // A sum with this power of two has M, rounded to even, as the last bits of its significand.
    const auto power = hn::IfThenElse(micro, hn::Set(di, (127 + 23 - kBits) << kExponentAt),
                                      hn::Set(di, (127 + 24 - kBits) << kExponentAt));
    const auto sum = hn::Add(y, hn::BitCast(df, power));
    m = hn::Min(hn::And(hn::BitCast(di, sum), hn::Set(di, 0xff)), hn::Set(di, (1 << kBits) - 1));
  }
  const hn::RebindToUnsigned<Ints> du;
  const auto sign = hn::BitCast(di, hn::ShiftRight<31 - kBits>(hn::BitCast(du, bits)));
  return hn::Or(m, hn::And(sign, hn::Set(di, 1 << kBits)));
}

HWY_INLINE IntVector LoadBits(const float* in) {
  return hn::BitCast(Ints(), hn::LoadU(Floats(), in));
}

HWY_INLINE IntVector MagnitudeOf(IntVector bits) {
  return hn::And(bits, hn::Set(Ints(), kMagnitude));
}

// Sixteen rows of Lanes(Floats) columns, a block in each; elements of a block are `step` apart in
// `in` and `codes_step` in `codes`, the blocks' scales and micro bytes lie side by side.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeAcross(const float* HWY_RESTRICT in, size_t step,
                             uint8_t* HWY_RESTRICT scales, uint8_t* HWY_RESTRICT micro,
                             uint8_t* HWY_RESTRICT codes, size_t codes_step) {
  const Ints di;
  const Floats df;
  const CodeBytes d8;
  const size_t lanes = hn::Lanes(df);
  // Rows of a matrix are often 4 KiB apart, too many for one set of the cache to be read twice.
  HWY_ALIGN float copy[kBlock * hn::MaxLanes(Floats())];
  auto largest = hn::Zero(di);
  for (size_t i = 0; i < kBlock; ++i) {
    const auto bits = LoadBits(in + i * step);
    hn::Store(hn::BitCast(df, bits), df, copy + i * lanes);
    largest = hn::Max(largest, MagnitudeOf(bits));
  }
  const auto scale = hn::And(largest, hn::Set(di, kExponent));
  hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kExponentAt>(scale)), d8, scales);
  auto micros = hn::Zero(di);
  for (size_t i = 0; i < kBlock; i += 2) {
    const auto bits0 = LoadBits(copy + i * lanes);
    const auto bits1 = LoadBits(copy + (i + 1) * lanes);
    const auto below = hn::Lt(hn::Max(MagnitudeOf(bits0), MagnitudeOf(bits1)), scale);
    micros = hn::Or(micros, hn::IfThenElseZero(below, hn::Set(di, 1 << (i / 2))));
    hn::StoreU(hn::DemoteTo(d8, Codes<kBits, kTruncate>(bits0, scale, below)), d8,
               codes + i * codes_step);
    hn::StoreU(hn::DemoteTo(d8, Codes<kBits, kTruncate>(bits1, scale, below)), d8,
               codes + (i + 1) * codes_step);
  }
  hn::StoreU(hn::DemoteTo(d8, micros), d8, micro);
}

#if HWY_TARGET != HWY_SCALAR

// Bits of the lanes of a mask, the first lowest.
HWY_INLINE uint32_t MaskBits(hn::Mask<Ints> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(Ints(), mask, bytes);
  uint32_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

// The even bits of 16, side by side.
HWY_INLINE uint32_t EvenBits(uint32_t bits) {
  bits &= 0x5555;
  bits = (bits | bits >> 1) & 0x3333;
  bits = (bits | bits >> 2) & 0x0f0f;
  return (bits | bits >> 4) & 0xff;
}

// One block of sixteen elements side by side.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeAlong(const float* HWY_RESTRICT in, uint8_t* HWY_RESTRICT scale,
                            uint8_t* HWY_RESTRICT micro, uint8_t* HWY_RESTRICT codes) {
  const Ints di;
  const CodeBytes d8;
  const size_t lanes = hn::Lanes(di);
  auto largest = hn::Zero(di);
  for (size_t i = 0; i < kBlock; i += lanes) {
    largest = hn::Max(largest, MagnitudeOf(LoadBits(in + i)));
  }
  const auto scales = hn::And(hn::MaxOfLanes(di, largest), hn::Set(di, kExponent));
  uint32_t below_bits = 0;
  for (size_t i = 0; i < kBlock; i += lanes) {
    const auto bits = LoadBits(in + i);
    const auto magnitude = MagnitudeOf(bits);
    const auto below = hn::Lt(hn::Max(magnitude, hn::Shuffle2301(magnitude)), scales);
    below_bits |= MaskBits(below) << i;
    hn::StoreU(hn::DemoteTo(d8, Codes<kBits, kTruncate>(bits, scales, below)), d8, codes + i);
  }
  *scale = static_cast<uint8_t>(hn::GetLane(scales) >> kExponentAt);
  *micro = static_cast<uint8_t>(EvenBits(below_bits));
}

#endif  // HWY_TARGET != HWY_SCALAR

HWY_INLINE void Prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }

// Whole blocks only: cols is a multiple of 16, and so are rows if blocks run along columns.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeBlocks(const Tile& tile, const float* in, size_t ld, const char* ahead,
                             uint8_t* HWY_RESTRICT scales, uint8_t* HWY_RESTRICT micro,
                             uint8_t* HWY_RESTRICT codes) {
  if (tile.by_column) {
    const size_t lanes = hn::Lanes(Floats());
    for (size_t r = 0; r < tile.rows; r += kBlock) {
      for (size_t c = 0; c < tile.cols; c += lanes) {
        if (c % kBlock == 0) {
          for (size_t i = 0; i < kBlock; ++i) Prefetch(ahead + 4 * ((r + i) * ld + c));
        }
        EncodeAcross<kBits, kTruncate>(in + r * ld + c, ld, scales + r / kBlock * tile.cols + c,
                                       micro + r / kBlock * tile.cols + c,
                                       codes + r * tile.cols + c, tile.cols);
      }
    }
  } else {
    const size_t blocks = tile.cols / kBlock;
    for (size_t r = 0; r < tile.rows; ++r) {
      for (size_t b = 0; b < blocks; ++b) {
        const size_t n = r * blocks + b;
        Prefetch(ahead + 4 * (r * ld + b * kBlock));
#if HWY_TARGET == HWY_SCALAR
        EncodeAcross<kBits, kTruncate>(in + r * ld + b * kBlock, 1, scales + n, micro + n,
                                       codes + n * kBlock, 1);
#else
        EncodeAlong<kBits, kTruncate>(in + r * ld + b * kBlock, scales + n, micro + n,
                                      codes + n * kBlock);
#endif
      }
    }
  }
}

// A block with a NaN or an infinity has no micro byte and no codes.
void ClearNaNBlocks(const Tile& tile, const uint8_t* scales, uint8_t* micro, uint8_t* codes) {
  const size_t across = tile.by_column ? tile.cols : tile.cols / kBlock;
  const size_t blocks = (tile.by_column ? tile.rows / kBlock : tile.rows) * across;
  const auto* found = static_cast<const uint8_t*>(std::memchr(scales, kNaNScale, blocks));
  while (found != nullptr) {
    const size_t n = static_cast<size_t>(found - scales);
    micro[n] = 0;
    if (tile.by_column) {
      uint8_t* block = codes + n / across * kBlock * tile.cols + n % across;
      for (size_t i = 0; i < kBlock; ++i) block[i * tile.cols] = 0;
    } else {
      std::memset(codes + n * kBlock, 0, kBlock);
    }
    found = static_cast<const uint8_t*>(std::memchr(found + 1, kNaNScale, blocks - n - 1));
  }
}

// How a ragged tile lies in one of whole blocks.
struct Padded {
  explicit Padded(const Tile& tile) : tile(tile), whole(tile) {
    whole.cols = (tile.cols + kBlock - 1) / kBlock * kBlock;
    if (tile.by_column) whole.rows = (tile.rows + kBlock - 1) / kBlock * kBlock;
    across = tile.by_column ? tile.cols : whole.cols / kBlock;
    whole_across = tile.by_column ? whole.cols : across;
    down = tile.by_column ? whole.rows / kBlock : tile.rows;
  }
  bool ragged() const { return whole.cols != tile.cols || whole.rows != tile.rows; }

  Tile tile;
  Tile whole;
  size_t across;        // blocks in a row of blocks, stored
  size_t whole_across;  // with those of padding only
  size_t down;          // rows of blocks
};

// Bits of the pairs of a block's first n elements.
HWY_INLINE uint8_t PairsOf(size_t n) { return static_cast<uint8_t>((1u << (n + 1) / 2) - 1); }

// The last blocks of an axis that 16 does not divide hold pairs of padding only, whose bit is 0.
void ClearPaddingPairs(const Padded& padded, uint8_t* micro) {
  const Tile& tile = padded.tile;
  if (tile.by_column) {
    const uint8_t pairs = PairsOf(tile.rows - (padded.down - 1) * kBlock);
    uint8_t* last = micro + (padded.down - 1) * padded.whole_across;
    for (size_t c = 0; c < padded.whole_across; ++c) last[c] &= pairs;
  } else {
    const uint8_t pairs = PairsOf(tile.cols - (padded.across - 1) * kBlock);
    for (size_t r = 0; r < padded.down; ++r) micro[(r + 1) * padded.across - 1] &= pairs;
  }
}

template <int kBits, bool kTruncate>
void EncodeRagged(const Padded& padded, const float* in, size_t ld, const Planes<uint8_t>& out) {
  const Tile& tile = padded.tile;
  const Tile& whole = padded.whole;
  HWY_ALIGN float values[kRows * kCols];
  HWY_ALIGN uint8_t codes[kRows * kCols];
  uint8_t scales[kMostBlocks];
  uint8_t micro[kMostBlocks];
  std::memset(values, 0, whole.rows * whole.cols * sizeof(float));
  for (size_t r = 0; r < tile.rows; ++r) {
    std::memcpy(values + r * whole.cols, in + r * ld, tile.cols * sizeof(float));
  }
  EncodeBlocks<kBits, kTruncate>(whole, values, whole.cols, reinterpret_cast<const char*>(values),
                                 scales, micro, codes);
  ClearPaddingPairs(padded, micro);
  ClearNaNBlocks(whole, scales, micro, codes);
  for (size_t r = 0; r < padded.down; ++r) {
    std::memcpy(out.scales + r * padded.across, scales + r * padded.whole_across, padded.across);
    std::memcpy(out.micro + r * padded.across, micro + r * padded.whole_across, padded.across);
  }
  bp::PackGroups<kBits + 1>(codes, tile.rows * whole.cols / kBlock, out.codes);
}

template <int kBits, bool kTruncate>
void EncodeTile(const Tile& tile, const float* in, size_t ld, const char* ahead,
                const Planes<uint8_t>& out) {
  const Padded padded(tile);
  if (padded.ragged()) return EncodeRagged<kBits, kTruncate>(padded, in, ld, out);
  if constexpr (kBits == 7) {
    EncodeBlocks<kBits, kTruncate>(tile, in, ld, ahead, out.scales, out.micro, out.codes);
    ClearNaNBlocks(tile, out.scales, out.micro, out.codes);
  } else {
    HWY_ALIGN uint8_t codes[kRows * kCols];
    EncodeBlocks<kBits, kTruncate>(tile, in, ld, ahead, out.scales, out.micro, codes);
    ClearNaNBlocks(tile, out.scales, out.micro, codes);
    bp::PackGroups<kBits + 1>(codes, tile.rows * tile.cols / kBlock, out.codes);
  }
}

// ---- Decoding

// The values of some elements, by codes, scales and where microexponents are 1. If not kAny, no
// value is a denormal or NaN, which scales from kBits + 1 to 254 warrant.
template <int kBits, bool kAny>
HWY_INLINE hn::Vec<Floats> Values(IntVector codes, IntVector scale, hn::Mask<Ints> micro) {
  const Ints di;
  const Floats df;
  const auto sign =
      hn::And(hn::ShiftLeft<31 - kBits>(codes), hn::Set(di, static_cast<int32_t>(0x80000000u)));
  const auto m = hn::ConvertTo(df, hn::And(codes, hn::Set(di, (1 << kBits) - 1)));
  const auto one_if_micro = hn::IfThenElseZero(micro, hn::Set(di, 1));
  // The biased exponent of M's unit.
  const auto unit = hn::Sub(hn::Sub(scale, hn::Set(di, kBits - 1)), one_if_micro);
  if constexpr (!kAny) {
    const auto power = hn::Or(hn::ShiftLeft<kExponentAt>(unit), sign);
    return hn::Mul(m, hn::BitCast(df, power));
  } else {
    const auto normal =
        hn::Add(hn::BitCast(di, m), hn::Sub(hn::ShiftLeft<kExponentAt>(unit), hn::Set(di, kOne)));
    // The value in units of 2^-149, which are a denormal's bits; computed above FP32's denormals,
    // whatever the thread's mode. From a scale of kBits + 1 on only a zero is below 2^23.
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

struct Assign {
  template <class DF>
  static HWY_INLINE void Store(DF df, hn::Vec<DF> value, float* out) {
    hn::StoreU(value, df, out);
  }
};

struct Add {
  template <class DF>
  static HWY_INLINE void Store(DF df, hn::Vec<DF> value, float* out) {
    hn::StoreU(hn::Add(hn::LoadU(df, out), value), df, out);
  }
};

HWY_INLINE IntVector Widened(const uint8_t* in) {
  return hn::PromoteTo(Ints(), hn::LoadU(CodeBytes(), in));
}

// As EncodeAcross.
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

// As EncodeAlong.
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

// Whole blocks only, as EncodeBlocks.
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

// There is no comparison of unsigned bytes everywhere.
template <class D>
HWY_INLINE hn::Mask<D> AtLeast(D d, hn::Vec<D> v, uint8_t low) {
  return hn::Eq(hn::Max(v, hn::Set(d, low)), v);
}

// Whether all of `n` bytes are at least `low` and at most 254.
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
  const Padded padded(tile);
  // A band of rows that the tile lacks has no codes either.
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
void EncodeAs(Format format, const Tile& tile, const float* in, size_t ld, const char* ahead,
              const Planes<uint8_t>& out) {
  switch (format) {
    case Format::kMx9:
      return EncodeTile<7, kTruncate>(tile, in, ld, ahead, out);
    case Format::kMx6:
      return EncodeTile<4, kTruncate>(tile, in, ld, ahead, out);
    case Format::kMx4:
      return EncodeTile<2, kTruncate>(tile, in, ld, ahead, out);
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

void EncodeNearest(Format format, const Tile& tile, const float* in, size_t ld, const char* ahead,
                   const Planes<uint8_t>& out) {
  EncodeAs<false>(format, tile, in, ld, ahead, out);
}
void EncodeTruncated(Format format, const Tile& tile, const float* in, size_t ld, const char* ahead,
                     const Planes<uint8_t>& out) {
  EncodeAs<true>(format, tile, in, ld, ahead, out);
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
            const void* ahead, const Planes<uint8_t>& out) {
  const char* next = static_cast<const char*>(ahead);
  if (truncate) {
    HWY_DYNAMIC_DISPATCH(EncodeTruncated)(format, tile, in, ld, next, out);
  } else {
    HWY_DYNAMIC_DISPATCH(EncodeNearest)(format, tile, in, ld, next, out);
  }
}

void Decode(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
            float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeAssigned)(format, tile, in, ld, out);
}

// The mode is set outside of the indirect call, across which the compiler moves no arithmetic.
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
