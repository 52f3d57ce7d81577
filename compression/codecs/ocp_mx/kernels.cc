#include "compression/codecs/ocp_mx/kernels.h"

#include <cstring>

#include "base/numerics/flush_denormals.h"
#include "compression/panel_ahead.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/ocp_mx/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow foreach_target.h, for which it is included again for each instruction set.
#include "compression/block_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::ocp_mx_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace bp = eps::block_pack::HWY_NAMESPACE;

constexpr size_t kGroup = 16;
constexpr size_t kMaxBlocks = 128;  // the most in a tile, along either axis
using FloatTag = HWY_CAPPED(float, kGroup);
using IntTag = hn::RebindToSigned<FloatTag>;
using Ints = hn::Vec<IntTag>;
using Floats = hn::Vec<FloatTag>;

constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kNan = 0x7fc00000;

// Blocks whose largest element has a biased exponent below kLift + emax or above kHigh are rescaled
// before encoding: raised by 2^kLift or lowered by 2^kLower. Between these limits, an FP32 denormal
// is less than half of any element's smallest value, so it may count as zero, and no step
// overflows.
constexpr int kLift = 32;
constexpr int kLower = 64;
constexpr int kHigh = 224;
// Blocks with a scale byte below this are first decoded 2^kRaise times too large.
constexpr int kLowScale = 64;
constexpr int kRaise = 149;

// The rows of a tile are short runs in distant pages, which hardware prefetchers do not follow.
HWY_INLINE void PrefetchFar(const float* row, size_t cols, size_t ld) {
  const float* const far = row + PanelAhead(ld);
  for (size_t c = 0; c < cols; c += kGroup) __builtin_prefetch(far + c, 0, 2);
}
HWY_INLINE void PrefetchNear(const float* row, size_t cols, size_t ld) {
  for (size_t c = 0; c < cols; c += kGroup) __builtin_prefetch(row + kRowsAhead * ld + c, 0, 3);
}
// Prefetches the destination of decoding: a row of the next tile and later rows of this tile.
HWY_INLINE void PrefetchRowToWrite(const float* row, size_t cols, size_t ld) {
  for (size_t c = 0; c < cols; c += kGroup) {
    __builtin_prefetch(row + kMaxCols + c, 1, 2);
    __builtin_prefetch(row + kRowsAhead * ld + c, 1, 3);
  }
}

// An element that is a small float. Encoding describes a block by `lowest`: the FP32 bits of the
// power of two that is the element's smallest normal value at the block's scale. Magnitude codes
// from kSpecial on are infinity (mantissa 0) or NaN.
template <int kExponentBits, int kMantissaBits, int kMaxCode, int kSpecial = 256>
struct SmallFloat {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kEmax = (kMaxCode >> kMantissaBits) - kBias;
  static constexpr int kSignBit = 1 << (kBits - 1);
  // The difference between the exponents of a block's largest magnitude and of `lowest`, and the
  // smallest biased exponent of `lowest`.
  static constexpr int kToLowest = kEmax - 1 + kBias;
  static constexpr int kLeastLowest = kLift + 1 - kBias;
  // Value returns multiples of the smallest element.
  static constexpr int kValueShift = kBias - 1 + kMantissaBits;
  static constexpr bool kHasSpecials = kSpecial < 256;
  static constexpr int kLeastSpecial = kSpecial;

  // Rounds by adding the power of two whose unit in the last place is the element's. Then replaces
  // the element's binade in the bits by the binade counted from `lowest`; rounding up to the next
  // binade carries. The code is in the low byte. The product is exact, so a fused multiply-add
  // gives the same result.
  static HWY_INLINE Ints Code(FloatTag df, Floats x, Ints lowest) {
    const IntTag di;
    constexpr int kDrop = 23 - kMantissaBits;
    const auto bits = hn::BitCast(di, x);
    const auto magnitude = hn::And(bits, hn::Set(di, kMagnitude));
    const auto binade = hn::And(hn::Max(magnitude, lowest), hn::Set(di, kInfinity));
    const auto sum =
        hn::MulAdd(hn::BitCast(df, binade), hn::Set(df, static_cast<float>(1 << kDrop)),
                   hn::BitCast(df, magnitude));
    const auto code = hn::Add(hn::Sub(hn::BitCast(di, sum), binade),
                              hn::ShiftRight<kDrop>(hn::Sub(binade, lowest)));
    return hn::OrAnd(hn::Min(code, hn::Set(di, (kDrop << 23) + kMaxCode)),
                     hn::ShiftRight<32 - kBits>(bits), hn::Set(di, kSignBit));
  }

  // Returns the value of a code without its sign, times 2^kValueShift; infinity and NaN are those
  // of FP32.
  template <bool kSpecials>
  static HWY_INLINE Floats Value(FloatTag df, Ints code) {
    const IntTag di;
    const auto magnitude = hn::And(code, hn::Set(di, kSignBit - 1));
    auto normal = hn::Add(hn::ShiftLeft<23 - kMantissaBits>(magnitude),
                          hn::Set(di, (127 - kBias + kValueShift) << 23));
    if (kSpecials && kHasSpecials) {
      const auto is_special = hn::Gt(magnitude, hn::Set(di, kSpecial - 1));
      normal = hn::IfThenElse(is_special, hn::Or(normal, hn::Set(di, kInfinity)), normal);
    }
    const auto is_denormal = hn::RebindMask(df, hn::Lt(magnitude, hn::Set(di, 1 << kMantissaBits)));
    return hn::IfThenElse(is_denormal, hn::ConvertTo(df, magnitude), hn::BitCast(df, normal));
  }
  // Returns the value with its sign. REQUIRES codes other than infinity and NaN.
  static HWY_INLINE Floats FiniteValue(FloatTag df, Ints code) {
    const IntTag di;
    const auto bits = hn::BitCast(di, Value<false>(df, code));
    return hn::BitCast(df,
                       hn::OrAnd(bits, hn::ShiftLeft<32 - kBits>(code), hn::Set(di, ~kMagnitude)));
  }
  static HWY_INLINE Ints Sign(Ints code) {
    const IntTag di;
    return hn::And(hn::ShiftLeft<32 - kBits>(code), hn::Set(di, ~kMagnitude));
  }
};

// mxint8; `lowest` holds the FP32 bits of the block's scale.
struct Integer {
  static constexpr int kBits = 8;
  static constexpr int kEmax = 0;
  static constexpr int kToLowest = 0;
  static constexpr int kLeastLowest = kLift;
  static constexpr int kValueShift = 6;
  static constexpr bool kHasSpecials = false;
  static constexpr int kLeastSpecial = 256;

  static HWY_INLINE Ints Code(FloatTag df, Floats x, Ints lowest) {
    const IntTag di;
    // 1.5 * 2^23 units of 2^-6.
    const auto unit = hn::Add(lowest, hn::Set(di, (17 << 23) | 0x400000));
    const auto code = hn::Sub(hn::BitCast(di, hn::Add(x, hn::BitCast(df, unit))), unit);
    return hn::Max(hn::Min(code, hn::Set(di, 127)), hn::Set(di, -127));
  }
  static HWY_INLINE Floats FiniteValue(FloatTag df, Ints code) {
    return hn::ConvertTo(df, hn::ShiftRight<24>(hn::ShiftLeft<24>(code)));
  }
  template <bool kSpecials>
  static HWY_INLINE Floats Value(FloatTag df, Ints code) {
    return hn::Abs(FiniteValue(df, code));
  }
  static HWY_INLINE Ints Sign(Ints code) {
    const IntTag di;
    return hn::And(hn::ShiftLeft<24>(code), hn::Set(di, ~kMagnitude));
  }
};

using E4m3 = SmallFloat<4, 3, 0x7e, 0x7f>;
using E5m2 = SmallFloat<5, 2, 0x7b, 0x7c>;
using E2m3 = SmallFloat<2, 3, 0x1f>;
using E3m2 = SmallFloat<3, 2, 0x1f>;
using E2m1 = SmallFloat<2, 1, 0x7>;

// ---- Codes of 6 and 4 bits

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

template <int kBits>
HWY_INLINE void Pack(const uint8_t* codes, size_t groups, uint8_t* out) {
  bp::PackGroups<kBits>(codes, groups, out);
}
template <int kBits>
HWY_INLINE void Unpack(const uint8_t* in, size_t groups, uint8_t* codes) {
  bp::UnpackGroups<kBits>(in, groups, codes);
}

#else

using ByteTag = HWY_CAPPED(uint8_t, 64);
constexpr size_t kBytes = hn::MaxLanes(ByteTag());

HWY_INLINE void PackFour(const uint8_t* HWY_RESTRICT codes, size_t groups,
                         uint8_t* HWY_RESTRICT out) {
  const ByteTag d8;
  const hn::Repartition<uint16_t, ByteTag> d16;
  const hn::Half<ByteTag> half;
  size_t i = 0;
  for (; i + kBytes <= groups * kGroup; i += kBytes) {
    const auto one = hn::BitCast(d16, hn::LoadU(d8, codes + i));
    hn::StoreU(hn::TruncateTo(half, hn::Or(one, hn::ShiftRight<4>(one))), half, out + i / 2);
  }
  bp::PackGroups<4>(codes + i, groups - i / kGroup, out + i / 2);
}

HWY_INLINE void UnpackFour(const uint8_t* HWY_RESTRICT in, size_t groups,
                           uint8_t* HWY_RESTRICT codes) {
  const ByteTag d8;
  const hn::Repartition<uint16_t, ByteTag> d16;
  const hn::Half<ByteTag> half;
  size_t i = 0;
  for (; i + kBytes <= groups * kGroup; i += kBytes) {
    const auto two = hn::PromoteTo(d16, hn::LoadU(half, in + i / 2));
    const auto one = hn::And(hn::Or(two, hn::ShiftLeft<4>(two)), hn::Set(d16, uint16_t{0x0f0f}));
    hn::StoreU(hn::BitCast(d8, one), d8, codes + i);
  }
  bp::UnpackGroups<4>(in + i / 2, groups - i / kGroup, codes + i);
}

template <int kBits>
HWY_INLINE void Pack(const uint8_t* codes, size_t groups, uint8_t* out) {
  if (kBits == 6) bp::PackGroups<6>(codes, groups, out);
  if (kBits == 4) PackFour(codes, groups, out);
}
template <int kBits>
HWY_INLINE void Unpack(const uint8_t* in, size_t groups, uint8_t* codes) {
  if (kBits == 6) bp::UnpackGroups<6>(in, groups, codes);
  if (kBits == 4) UnpackFour(in, groups, codes);
}

#endif  // HWY_TARGET

// ---- Encoding

// Store or load one code per byte.
HWY_INLINE void StoreCodes(Ints codes, uint8_t* out) {
  const hn::RebindToUnsigned<IntTag> du;
  const hn::Rebind<uint8_t, IntTag> d8;
  hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, codes)), d8, out);
}
HWY_INLINE Ints LoadCodes(const uint8_t* in) {
  const IntTag di;
  const hn::Rebind<uint8_t, IntTag> d8;
  return hn::PromoteTo(di, hn::LoadU(d8, in));
}

HWY_INLINE Ints Magnitude(const float* in) {
  const IntTag di;
  const FloatTag df;
  return hn::And(hn::BitCast(di, hn::LoadU(df, in)), hn::Set(di, kMagnitude));
}

// Returns `lowest` of blocks whose largest magnitudes have those bits.
template <class Format>
HWY_INLINE Ints Lowest(Ints largest) {
  const IntTag di;
  const auto binade = hn::And(largest, hn::Set(di, kInfinity));
  return hn::Max(hn::Sub(binade, hn::Set(di, Format::kToLowest << 23)),
                 hn::Set(di, Format::kLeastLowest << 23));
}

// Encodes one block of a row: 32 elements, or 16 at the end of the row. Returns the bits of the
// largest magnitude.
template <class Format, size_t kLength>
HWY_INLINE int32_t EncodeRowBlock(const float* in, uint8_t* codes) {
  const IntTag di;
  const FloatTag df;
  const size_t lanes = hn::Lanes(di);
  auto largest = Magnitude(in);
  for (size_t i = lanes; i < kLength; i += lanes) largest = hn::Max(largest, Magnitude(in + i));
  largest = hn::MaxOfLanes(di, largest);
  const auto lowest = Lowest<Format>(largest);
  for (size_t i = 0; i < kLength; i += lanes) {
    StoreCodes(Format::Code(df, hn::LoadU(df, in + i), lowest), codes + i);
  }
  return hn::GetLane(largest);
}

#if HWY_TARGET != HWY_SCALAR

// Returns the largest magnitudes of a block per lane, not yet combined across lanes.
HWY_INLINE Ints LargestOfBlock(const float* in) {
  const size_t lanes = hn::Lanes(IntTag());
  auto largest = Magnitude(in);
  for (size_t i = lanes; i < kBlock; i += lanes) largest = hn::Max(largest, Magnitude(in + i));
  return largest;
}

template <class Format, int kBlockInRow>
HWY_INLINE void EncodeOneOfFour(const float* HWY_RESTRICT in, Ints largest,
                                uint8_t* HWY_RESTRICT codes) {
  const FloatTag df;
  const auto lowest = Lowest<Format>(hn::Broadcast<kBlockInRow>(largest));
  for (size_t i = kBlockInRow * kBlock; i < (kBlockInRow + 1) * kBlock; i += hn::Lanes(df)) {
    StoreCodes(Format::Code(df, hn::LoadU(df, in + i), lowest), codes + i);
  }
}

// Encodes four blocks of a row at once, so that their maxima across lanes share the shuffles.
// Writes up to kGroup elements of `largest`.
template <class Format>
HWY_INLINE void EncodeFourRowBlocks(const float* HWY_RESTRICT in, int32_t* HWY_RESTRICT largest,
                                    uint8_t* HWY_RESTRICT codes) {
  const IntTag di;
  const hn::Repartition<int64_t, IntTag> d64;
  const auto a = LargestOfBlock(in);
  const auto b = LargestOfBlock(in + kBlock);
  const auto c = LargestOfBlock(in + 2 * kBlock);
  const auto d = LargestOfBlock(in + 3 * kBlock);
  const auto ab =
      hn::BitCast(d64, hn::Max(hn::InterleaveLower(di, a, b), hn::InterleaveUpper(di, a, b)));
  const auto cd =
      hn::BitCast(d64, hn::Max(hn::InterleaveLower(di, c, d), hn::InterleaveUpper(di, c, d)));
  auto all = hn::Max(hn::BitCast(di, hn::InterleaveLower(d64, ab, cd)),
                     hn::BitCast(di, hn::InterleaveUpper(d64, ab, cd)));
  // Now combine across the 128-bit pieces, each of which holds a, b, c, d.
  if (hn::MaxLanes(di) > 4) all = hn::Max(all, hn::ConcatLowerUpper(di, all, all));
  if (hn::MaxLanes(di) > 8) all = hn::Max(all, hn::ReverseBlocks(di, all));
  hn::StoreU(all, di, largest);  // the excess over four is overwritten by later blocks or unused
  EncodeOneOfFour<Format, 0>(in, all, codes);
  EncodeOneOfFour<Format, 1>(in, all, codes);
  EncodeOneOfFour<Format, 2>(in, all, codes);
  EncodeOneOfFour<Format, 3>(in, all, codes);
}

#endif  // HWY_TARGET != HWY_SCALAR

// Writes the codes of a whole tile, one byte each, with whole groups in each row, and the bits of
// the largest magnitude of each block into `largest`, which must be zero before. The codes of
// blocks that have to be rescaled are wrong.
template <class Format>
HWY_INLINE void EncodeRowBlocks(const TileShape& shape, const float* HWY_RESTRICT in, size_t ld,
                                int32_t* HWY_RESTRICT largest, uint8_t* HWY_RESTRICT codes) {
  for (size_t r = 0; r < shape.rows; ++r) {
    const float* row = in + r * ld;
    PrefetchFar(row, shape.cols, ld);
    PrefetchNear(row, shape.cols, ld);
    size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; c + 4 * kBlock <= shape.cols; c += 4 * kBlock) {
      EncodeFourRowBlocks<Format>(row + c, largest, codes + c);
      largest += 4;
    }
#endif
    for (; c + kBlock <= shape.cols; c += kBlock) {
      *largest++ = EncodeRowBlock<Format, kBlock>(row + c, codes + c);
    }
    if (c < shape.cols) {
      float tail[kBlock] = {};
      std::memcpy(tail, row + c, (shape.cols - c) * sizeof(float));
      if (shape.cols - c > kGroup) {
        *largest++ = EncodeRowBlock<Format, kBlock>(tail, codes + c);
      } else {
        *largest++ = EncodeRowBlock<Format, kGroup>(tail, codes + c);
      }
    }
    codes += (shape.cols + kGroup - 1) / kGroup * kGroup;
  }
}

// Encodes the blocks of four adjacent vectors of columns, with `padded` codes per row.
template <class Format>
HWY_INLINE void EncodeFourVectors(const float* HWY_RESTRICT in, size_t ld, size_t rows,
                                  size_t padded, int32_t* HWY_RESTRICT largest,
                                  uint8_t* HWY_RESTRICT codes) {
  const IntTag di;
  const FloatTag df;
  const size_t lanes = hn::Lanes(di);
  // The rows can be at addresses that share a few lines of the first-level cache, so they are
  // copied instead of being read again.
  HWY_ALIGN float copy[kMaxRows * 4 * kGroup];
  auto a = hn::Zero(di);
  auto b = hn::Zero(di);
  auto c = hn::Zero(di);
  auto d = hn::Zero(di);
  float* HWY_RESTRICT to = copy;
  for (size_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT row = in + r * ld;
    // Prefetch half of the next tile now and half in the second pass, which leaves the memory idle.
    PrefetchFar(row, 2 * lanes, ld);
    PrefetchNear(row, 4 * lanes, ld);
    for (size_t i = 0; i < 4 * lanes; i += lanes) hn::Store(hn::LoadU(df, row + i), df, to + i);
    a = hn::Max(a, Magnitude(row));
    b = hn::Max(b, Magnitude(row + lanes));
    c = hn::Max(c, Magnitude(row + 2 * lanes));
    d = hn::Max(d, Magnitude(row + 3 * lanes));
    to += 4 * lanes;
  }
  hn::Store(a, di, largest);
  hn::Store(b, di, largest + lanes);
  hn::Store(c, di, largest + 2 * lanes);
  hn::Store(d, di, largest + 3 * lanes);
  a = Lowest<Format>(a);
  b = Lowest<Format>(b);
  c = Lowest<Format>(c);
  d = Lowest<Format>(d);
  const float* HWY_RESTRICT from = copy;
  for (size_t r = 0; r < rows; ++r) {
    PrefetchFar(in + r * ld + 2 * lanes, 2 * lanes, ld);
    StoreCodes(Format::Code(df, hn::Load(df, from), a), codes);
    StoreCodes(Format::Code(df, hn::Load(df, from + lanes), b), codes + lanes);
    StoreCodes(Format::Code(df, hn::Load(df, from + 2 * lanes), c), codes + 2 * lanes);
    StoreCodes(Format::Code(df, hn::Load(df, from + 3 * lanes), d), codes + 3 * lanes);
    from += 4 * lanes;
    codes += padded;
  }
}

// Encodes the blocks of one vector of columns.
template <class Format>
HWY_INLINE void EncodeOneVector(const float* HWY_RESTRICT in, size_t ld, size_t rows, size_t padded,
                                int32_t* HWY_RESTRICT largest, uint8_t* HWY_RESTRICT codes) {
  const IntTag di;
  const FloatTag df;
  auto most = hn::Zero(di);
  for (size_t r = 0; r < rows; ++r) most = hn::Max(most, Magnitude(in + r * ld));
  hn::Store(most, di, largest);
  const auto lowest = Lowest<Format>(most);
  for (size_t r = 0; r < rows; ++r) {
    StoreCodes(Format::Code(df, hn::LoadU(df, in + r * ld), lowest), codes + r * padded);
  }
}

template <class Format>
HWY_INLINE void EncodeColumnBlocks(const TileShape& shape, const float* HWY_RESTRICT in, size_t ld,
                                   int32_t* HWY_RESTRICT largest, uint8_t* HWY_RESTRICT codes) {
  const size_t lanes = hn::Lanes(IntTag());
  const size_t padded = (shape.cols + kGroup - 1) / kGroup * kGroup;
  const size_t whole = shape.cols / kGroup * kGroup;
  size_t c = 0;
  for (; c + 4 * lanes <= whole; c += 4 * lanes) {
    EncodeFourVectors<Format>(in + c, ld, shape.rows, padded, largest + c, codes + c);
  }
  for (; c < whole; c += lanes) {
    EncodeOneVector<Format>(in + c, ld, shape.rows, padded, largest + c, codes + c);
  }
  if (whole == padded) return;
  HWY_ALIGN float tail[kMaxRows * kGroup] = {};
  for (size_t r = 0; r < shape.rows; ++r) {
    std::memcpy(tail + r * kGroup, in + r * ld + whole, (shape.cols - whole) * sizeof(float));
  }
  for (; c < padded; c += lanes) {
    EncodeOneVector<Format>(tail + c - whole, kGroup, shape.rows, padded, largest + c, codes + c);
  }
}

size_t Blocks(const TileShape& shape) {
  return shape.column_blocks ? shape.cols : shape.rows * ((shape.cols + kBlock - 1) / kBlock);
}

// Returns true if a block has to be rescaled.
template <class Format>
HWY_INLINE bool IsFarOut(int32_t largest) {
  const int exponent = largest >> 23;
  return largest != 0 && (exponent < kLift + Format::kEmax || exponent > kHigh);
}

// Computes the scale bytes of all blocks. Returns true if any block has to be rescaled.
template <class Format>
HWY_INLINE bool ScalesOf(const int32_t* HWY_RESTRICT largest, size_t blocks,
                         uint8_t* HWY_RESTRICT scales) {
  const IntTag di;
  uint8_t bytes[kMaxBlocks];
  auto far_out = hn::Zero(di);
  for (size_t b = 0; b < blocks; b += hn::Lanes(di)) {
    const auto magnitude = hn::Load(di, largest + b);
    const auto exponent = hn::ShiftRight<23>(magnitude);
    const auto scale = hn::Max(hn::Sub(exponent, hn::Set(di, Format::kEmax)), hn::Zero(di));
    const auto is_nan = hn::Gt(exponent, hn::Set(di, 254));
    StoreCodes(hn::IfThenElse(is_nan, hn::Set(di, 255), scale), bytes + b);
    const auto is_low =
        hn::And(hn::VecFromMask(di, hn::Gt(magnitude, hn::Zero(di))),
                hn::VecFromMask(di, hn::Lt(exponent, hn::Set(di, kLift + Format::kEmax))));
    const auto is_high = hn::VecFromMask(di, hn::Gt(exponent, hn::Set(di, kHigh)));
    far_out = hn::Or(far_out, hn::Or(is_low, is_high));
  }
  std::memcpy(scales, bytes, blocks);
  return !hn::AllTrue(di, hn::Eq(far_out, hn::Zero(di)));
}

// Returns x * 2^kLift, computed with integers because x may be a denormal.
HWY_INLINE int32_t Lift(int32_t bits) {
  const int32_t magnitude = bits & kMagnitude;
  const int32_t sign = bits & ~kMagnitude;
  if (magnitude == 0) return bits;
  if (magnitude >= 1 << 23) return bits + (kLift << 23);
  const float units = static_cast<float>(magnitude);
  int32_t lifted;
  std::memcpy(&lifted, &units, sizeof(lifted));
  return sign | (lifted - ((149 - kLift) << 23));
}

// Returns x * 2^-kLower, or a zero of its sign where that would be negligible; zero if the block is
// not finite.
HWY_INLINE int32_t LowerBits(int32_t bits, bool finite) {
  if (!finite) return 0;
  const int32_t magnitude = bits & kMagnitude;
  const int32_t sign = bits & ~kMagnitude;
  return magnitude >> 23 <= kLower ? sign : bits - (kLower << 23);
}

// Copies the tile and rescales the blocks that need it.
template <class Format>
void Rescale(const TileShape& shape, const float* in, size_t ld, const int32_t* largest,
             float* out) {
  const size_t across = (shape.cols + kBlock - 1) / kBlock;
  for (size_t r = 0; r < shape.rows; ++r) {
    for (size_t c = 0; c < shape.cols; ++c) {
      const int32_t of_block = largest[shape.column_blocks ? c : r * across + c / kBlock];
      int32_t bits;
      std::memcpy(&bits, in + r * ld + c, sizeof(bits));
      if (IsFarOut<Format>(of_block)) {
        bits = of_block >> 23 <= kHigh ? Lift(bits) : LowerBits(bits, of_block < kInfinity);
      }
      std::memcpy(out + r * kMaxCols + c, &bits, sizeof(bits));
    }
  }
}

size_t Groups(const TileShape& shape) { return shape.rows * ((shape.cols + kGroup - 1) / kGroup); }

template <class Format>
HWY_INLINE void EncodeCodes(const TileShape& shape, const float* in, size_t ld, int32_t* largest,
                            uint8_t* out) {
  HWY_ALIGN uint8_t unpacked[Format::kBits < 8 ? kMaxRows * kMaxCols : 1];
  uint8_t* const codes = Format::kBits < 8 ? unpacked : out;
  if (shape.column_blocks) {
    EncodeColumnBlocks<Format>(shape, in, ld, largest, codes);
  } else {
    EncodeRowBlocks<Format>(shape, in, ld, largest, codes);
  }
  // Pack all codes at the end, when the latest stores have left the store buffers.
  if (Format::kBits < 8) Pack<Format::kBits>(codes, Groups(shape), out);
}

template <class Format>
void EncodeTile(const TileShape& shape, const float* in, size_t ld, uint8_t* scales,
                uint8_t* codes) {
  HWY_ALIGN int32_t largest[kMaxBlocks + kGroup] = {};
  EncodeCodes<Format>(shape, in, ld, largest, codes);
  if (HWY_UNLIKELY(ScalesOf<Format>(largest, Blocks(shape), scales))) {
    float rescaled[kMaxRows * kMaxCols];
    Rescale<Format>(shape, in, ld, largest, rescaled);
    std::memset(largest, 0, sizeof(largest));
    EncodeCodes<Format>(shape, rescaled, kMaxCols, largest, codes);
  }
}

// ---- Decoding

// Replaces the output.
struct Assign {
  static HWY_INLINE Floats Combine(FloatTag, const float*, Floats value) { return value; }
};
// Adds to the output.
struct Add {
  static HWY_INLINE Floats Combine(FloatTag df, const float* out, Floats value) {
    return hn::Add(hn::LoadU(df, out), value);
  }
};

// The decoding parameters of blocks: values are multiplied by `factor`, then `surplus` is
// subtracted from their bits.
struct Factors {
  HWY_ALIGN int32_t factor[kMaxBlocks];
  HWY_ALIGN int32_t surplus[kMaxBlocks];
};

// Returns true if all elements are products of a finite value and a factor.
template <class Format>
HWY_INLINE bool FactorsOf(const uint8_t* scales, size_t blocks, Factors* factors) {
  const IntTag di;
  uint8_t padded[kMaxBlocks];
  std::memset(padded, 127, sizeof(padded));
  std::memcpy(padded, scales, blocks);
  auto special = hn::Zero(di);
  for (size_t b = 0; b < kMaxBlocks; b += hn::Lanes(di)) {
    const auto scale = LoadCodes(padded + b);
    const auto raise =
        hn::IfThenElseZero(hn::Lt(scale, hn::Set(di, kLowScale)), hn::Set(di, kRaise << 23));
    const auto factor =
        hn::Add(hn::ShiftLeft<23>(hn::Sub(scale, hn::Set(di, Format::kValueShift))), raise);
    const auto nan = hn::IfThenElseZero(hn::Eq(scale, hn::Set(di, 255)), hn::Set(di, kNan));
    hn::Store(hn::IfThenElse(hn::Eq(scale, hn::Set(di, 255)), nan, factor), di,
              factors->factor + b);
    hn::Store(raise, di, factors->surplus + b);
    special = hn::Or(special, hn::Or(nan, raise));
  }
  return hn::AllTrue(di, hn::Eq(special, hn::Zero(di)));
}

// Returns the exact elements of codes, denormals included. A product that is raised by 2^149 counts
// units of the smallest denormal; below 2^23 units the count is the bits.
template <class Format>
HWY_INLINE Floats Elements(FloatTag df, Ints code, Ints factor, Ints surplus) {
  const IntTag di;
  const auto raised = hn::Mul(Format::template Value<true>(df, code), hn::BitCast(df, factor));
  const auto raised_bits = hn::BitCast(di, raised);
  const auto one_unit = hn::Set(di, 150 << 23);  // 2^23 units
  const auto counted =
      hn::Sub(hn::BitCast(di, hn::Add(raised, hn::BitCast(df, one_unit))), one_unit);
  const auto is_denormal = hn::Lt(raised_bits, hn::Add(surplus, hn::Set(di, 1 << 23)));
  auto bits = hn::IfThenElse(is_denormal, counted, hn::Sub(raised_bits, surplus));
  if (Format::kHasSpecials) {
    bits = hn::IfThenElse(hn::Eq(raised_bits, hn::Set(di, kInfinity)), raised_bits, bits);
  }
  bits = hn::Or(bits, Format::Sign(code));
  const auto is_nan = hn::Gt(raised_bits, hn::Set(di, kInfinity));
  bits = hn::IfThenElse(is_nan, hn::Set(di, kNan), bits);
  return hn::BitCast(df, bits);
}

// Decodes one group of codes. With kColumnBlocks each element has its own factor and surplus;
// otherwise all share the first. kPlain: FactorsOf returned true, and no code is an infinity or
// NaN.
template <class Format, class Operation, bool kColumnBlocks, bool kPlain>
HWY_INLINE void DecodeGroup(const uint8_t* HWY_RESTRICT codes, const int32_t* HWY_RESTRICT factor,
                            const int32_t* HWY_RESTRICT surplus, float* HWY_RESTRICT out) {
  const IntTag di;
  const FloatTag df;
  for (size_t i = 0; i < kGroup; i += hn::Lanes(df)) {
    const auto code = LoadCodes(codes + i);
    const auto f = kColumnBlocks ? hn::Load(di, factor + i) : hn::Set(di, *factor);
    Floats value;
    if (kPlain) {
      value = hn::Mul(Format::FiniteValue(df, code), hn::BitCast(df, f));
    } else {
      const auto s = kColumnBlocks ? hn::Load(di, surplus + i) : hn::Set(di, *surplus);
      value = Elements<Format>(df, code, f, s);
    }
    hn::StoreU(Operation::Combine(df, out + i, value), df, out + i);
  }
}

template <class Format, class Operation, bool kColumnBlocks, bool kPlain>
HWY_INLINE void DecodeRows(const TileShape& shape, const Factors& factors,
                           const uint8_t* HWY_RESTRICT codes, size_t ld, float* HWY_RESTRICT out) {
  const size_t across = (shape.cols + kBlock - 1) / kBlock;
  const size_t whole = shape.cols / kGroup * kGroup;
  const size_t tail = shape.cols - whole;
  const int32_t* factor = factors.factor;
  const int32_t* surplus = factors.surplus;
  for (size_t r = 0; r < shape.rows; ++r) {
    float* HWY_RESTRICT row = out + r * ld;
    PrefetchRowToWrite(row, shape.cols, ld);
    size_t c = 0;
    for (; c < whole; c += kGroup) {
      const size_t block = kColumnBlocks ? c : c / kBlock;
      DecodeGroup<Format, Operation, kColumnBlocks, kPlain>(codes + c, factor + block,
                                                            surplus + block, row + c);
    }
    if (tail > 0) {
      const size_t block = kColumnBlocks ? c : c / kBlock;
      float group[kGroup] = {};
      std::memcpy(group, row + c, tail * sizeof(float));
      DecodeGroup<Format, Operation, kColumnBlocks, kPlain>(codes + c, factor + block,
                                                            surplus + block, group);
      std::memcpy(row + c, group, tail * sizeof(float));
      c += kGroup;
    }
    if (!kColumnBlocks) {
      factor += across;
      surplus += across;
    }
    codes += c;
  }
}

bool ScanBytes(const uint8_t* HWY_RESTRICT in, size_t n, uint8_t mask, uint8_t limit) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto kept = hn::Set(d, mask);
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, in + i), kept));
  }
  const auto allowed = hn::Set(d, limit);
  bool found = !hn::AllTrue(d, hn::Eq(hn::Max(largest, allowed), allowed));
  for (; i < n; ++i) found |= (in[i] & mask) > limit;
  return found;
}

template <class Format, class Operation>
void DecodeTile(const TileShape& shape, const uint8_t* scales, const uint8_t* in, size_t ld,
                float* out) {
  const size_t groups = Groups(shape);
  const uint8_t* codes = in;
  HWY_ALIGN uint8_t unpacked[Format::kBits < 8 ? kMaxRows * kMaxCols : 1];
  if (Format::kBits < 8) {
    Unpack<Format::kBits>(in, groups, unpacked);
    codes = unpacked;
  }
  Factors factors;
  bool plain = FactorsOf<Format>(scales, Blocks(shape), &factors);
  if (Format::kHasSpecials) {
    plain = plain && !ScanBytes(in, groups * kGroup, 0x7f, HWY_MIN(Format::kLeastSpecial - 1, 255));
  }
  if (shape.column_blocks) {
    if (HWY_LIKELY(plain)) {
      DecodeRows<Format, Operation, true, true>(shape, factors, codes, ld, out);
    } else {
      DecodeRows<Format, Operation, true, false>(shape, factors, codes, ld, out);
    }
  } else {
    if (HWY_LIKELY(plain)) {
      DecodeRows<Format, Operation, false, true>(shape, factors, codes, ld, out);
    } else {
      DecodeRows<Format, Operation, false, false>(shape, factors, codes, ld, out);
    }
  }
}

// ---- Entry points

void EncodeAny(Element element, const TileShape& shape, const float* in, size_t ld, uint8_t* scales,
               uint8_t* codes) {
  switch (element) {
    case Element::kE4m3:
      return EncodeTile<E4m3>(shape, in, ld, scales, codes);
    case Element::kE5m2:
      return EncodeTile<E5m2>(shape, in, ld, scales, codes);
    case Element::kE2m3:
      return EncodeTile<E2m3>(shape, in, ld, scales, codes);
    case Element::kE3m2:
      return EncodeTile<E3m2>(shape, in, ld, scales, codes);
    case Element::kE2m1:
      return EncodeTile<E2m1>(shape, in, ld, scales, codes);
    case Element::kInt8:
      return EncodeTile<Integer>(shape, in, ld, scales, codes);
  }
}

template <class Operation>
HWY_INLINE void DecodeAny(Element element, const TileShape& shape, const uint8_t* scales,
                          const uint8_t* codes, size_t ld, float* out) {
  switch (element) {
    case Element::kE4m3:
      return DecodeTile<E4m3, Operation>(shape, scales, codes, ld, out);
    case Element::kE5m2:
      return DecodeTile<E5m2, Operation>(shape, scales, codes, ld, out);
    case Element::kE2m3:
      return DecodeTile<E2m3, Operation>(shape, scales, codes, ld, out);
    case Element::kE3m2:
      return DecodeTile<E3m2, Operation>(shape, scales, codes, ld, out);
    case Element::kE2m1:
      return DecodeTile<E2m1, Operation>(shape, scales, codes, ld, out);
    case Element::kInt8:
      return DecodeTile<Integer, Operation>(shape, scales, codes, ld, out);
  }
}

void AssignAny(Element element, const TileShape& shape, const uint8_t* scales, const uint8_t* codes,
               size_t ld, float* out) {
  DecodeAny<Assign>(element, shape, scales, codes, ld, out);
}
void AddAny(Element element, const TileShape& shape, const uint8_t* scales, const uint8_t* codes,
            size_t ld, float* out) {
  DecodeAny<Add>(element, shape, scales, codes, ld, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::ocp_mx_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::ocp_mx_kernels {

HWY_EXPORT(EncodeAny);
HWY_EXPORT(AssignAny);
HWY_EXPORT(AddAny);
HWY_EXPORT(ScanBytes);

void Encode(Element element, const TileShape& shape, const float* in, size_t ld, uint8_t* scales,
            uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(EncodeAny)(element, shape, in, ld, scales, codes);
}
void Decode(Element element, const TileShape& shape, const uint8_t* scales, const uint8_t* codes,
            size_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(AssignAny)(element, shape, scales, codes, ld, out);
}
// Sets the mode outside of the indirect call, across which the compiler moves no arithmetic.
void Accumulate(Element element, const TileShape& shape, const uint8_t* scales,
                const uint8_t* codes, size_t ld, float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(AddAny)(element, shape, scales, codes, ld, out);
}
bool AnyAbove(const uint8_t* in, size_t n, uint8_t mask, uint8_t limit) {
  return HWY_DYNAMIC_DISPATCH(ScanBytes)(in, n, mask, limit);
}

}  // namespace eps::ocp_mx_kernels
#endif  // HWY_ONCE
