#include "compression/codecs/ocp_mx/kernels.h"

#include <cstring>

#include "common/flush_denormals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/ocp_mx/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Behind foreach_target.h, which makes it new for each instruction set.
#include "compression/block_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::ocp_mx_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace bp = eps::block_pack::HWY_NAMESPACE;

constexpr size_t kGroup = 16;
constexpr size_t kMaxBlocks = 128;  // along either axis
using FloatTag = HWY_CAPPED(float, kGroup);
using IntTag = hn::RebindToSigned<FloatTag>;
using Ints = hn::Vec<IntTag>;
using Floats = hn::Vec<FloatTag>;

constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kNan = 0x7fc00000;
// The rows of a tile are short runs in distant pages, which hardware prefetchers do not follow.
// This many elements on is the same row of the next tile.
constexpr size_t kPrefetchElements = kMaxCols;

// Blocks whose largest element has a biased exponent below kLift + emax or above kHigh are not
// encoded as they are: they are first lifted by 2^kLift or lowered by 2^kLower. In between, an FP32
// denormal is less than half of any element's smallest value, so that it may count as zero, and no
// step overflows.
constexpr int kLift = 32;
constexpr int kLower = 64;
constexpr int kHigh = 224;
// Blocks with a scale byte below this are decoded 2^kRaise too large.
constexpr int kLowScale = 64;
constexpr int kRaise = 149;

HWY_INLINE void PrefetchRow(const float* row, size_t cols) {
  for (size_t c = 0; c < cols; c += kGroup) {
    __builtin_prefetch(row + kPrefetchElements + c, 0, 2);
  }
}
HWY_INLINE void PrefetchRowToWrite(const float* row, size_t cols) {
  for (size_t c = 0; c < cols; c += kGroup) {
    __builtin_prefetch(row + kPrefetchElements + c, 1, 2);
  }
}

// An element that is a small float. Blocks are told to Encode by `lowest`: the FP32 bits of the
// power of two that is the element's smallest normal value under the block's scale.
// Magnitude codes from kSpecial on are an infinity (mantissa 0) or NaN.
template <int kExponentBits, int kMantissaBits, int kMaxCode, int kSpecial = 256>
struct SmallFloat {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kEmax = (kMaxCode >> kMantissaBits) - kBias;
  static constexpr int kSignBit = 1 << (kBits - 1);
  // What is taken from a block's largest exponent to get `lowest`, and the least `lowest`.
  static constexpr int kToLowest = kEmax - 1 + kBias;
  static constexpr int kLeastLowest = kLift + 1 - kBias;
  // What a scale's exponent is lowered by to multiply Value.
  static constexpr int kValueShift = 0;
  static constexpr bool kHasSpecials = kSpecial < 256;

  // Rounds by adding the power of two whose unit is the element's, takes that away from the bits,
  // and adds the exponent: rounding up to the next binade carries.
  static HWY_INLINE Ints Code(FloatTag df, Floats x, Ints lowest) {
    const IntTag di;
    constexpr int kDrop = 23 - kMantissaBits;
    const auto bits = hn::BitCast(di, x);
    const auto magnitude = hn::And(bits, hn::Set(di, kMagnitude));
    const auto binade = hn::And(hn::Max(magnitude, lowest), hn::Set(di, kInfinity));
    const auto unit = hn::Add(binade, hn::Set(di, kDrop << 23));
    const auto sum = hn::BitCast(di, hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, unit)));
    const auto code = hn::Add(hn::Sub(sum, unit), hn::ShiftRight<kDrop>(hn::Sub(binade, lowest)));
    const auto sign = hn::And(hn::ShiftRight<32 - kBits>(bits), hn::Set(di, kSignBit));
    return hn::Or(hn::Min(code, hn::Set(di, kMaxCode)), sign);
  }

  // The value of a code without its sign; infinity and NaN are FP32's.
  static HWY_INLINE Floats Value(FloatTag df, Ints code) {
    const IntTag di;
    const auto magnitude = hn::And(code, hn::Set(di, kSignBit - 1));
    const auto shifted = hn::ShiftLeft<23 - kMantissaBits>(magnitude);
    auto normal = hn::Add(shifted, hn::Set(di, (127 - kBias) << 23));
    if (kHasSpecials) {
      const auto is_special = hn::Gt(magnitude, hn::Set(di, kSpecial - 1));
      normal = hn::IfThenElse(is_special, hn::Or(normal, hn::Set(di, kInfinity)), normal);
    }
    // As if it were of the binade above, less what is too much then.
    const auto one = hn::Set(di, (128 - kBias) << 23);
    const auto denormal = hn::Sub(hn::BitCast(df, hn::Add(shifted, one)), hn::BitCast(df, one));
    const auto is_denormal = hn::RebindMask(df, hn::Lt(magnitude, hn::Set(di, 1 << kMantissaBits)));
    return hn::IfThenElse(is_denormal, denormal, hn::BitCast(df, normal));
  }
  static HWY_INLINE Ints Sign(Ints code) {
    const IntTag di;
    return hn::And(hn::ShiftLeft<32 - kBits>(code), hn::Set(di, ~kMagnitude));
  }
};

// mxint8; `lowest` are the bits of the block's scale.
struct Integer {
  static constexpr int kBits = 8;
  static constexpr int kEmax = 0;
  static constexpr int kToLowest = 0;
  static constexpr int kLeastLowest = kLift;
  static constexpr int kValueShift = 6;
  static constexpr bool kHasSpecials = false;

  static HWY_INLINE Ints Code(FloatTag df, Floats x, Ints lowest) {
    const IntTag di;
    // 1.5 * 2^23 units of 2^-6.
    const auto unit = hn::Add(lowest, hn::Set(di, (17 << 23) | 0x400000));
    const auto code = hn::Sub(hn::BitCast(di, hn::Add(x, hn::BitCast(df, unit))), unit);
    return hn::Max(hn::Min(code, hn::Set(di, 127)), hn::Set(di, -127));
  }
  static HWY_INLINE Floats Value(FloatTag df, Ints code) {
    return hn::Abs(hn::ConvertTo(df, hn::ShiftRight<24>(hn::ShiftLeft<24>(code))));
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

// ---- Encoding.

// Loads or stores one code per byte.
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

// `lowest` of blocks whose largest magnitudes have those bits.
template <class Format>
HWY_INLINE Ints Lowest(Ints largest) {
  const IntTag di;
  const auto binade = hn::And(largest, hn::Set(di, kInfinity));
  return hn::Max(hn::Sub(binade, hn::Set(di, Format::kToLowest << 23)),
                 hn::Set(di, Format::kLeastLowest << 23));
}

// One block of a row: 32 elements, or 16 where the row ends. Returns the largest magnitude's bits.
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

// The codes of a whole tile and the bits of its blocks' largest magnitudes, which come as zeros.
// Codes of blocks that have to be lifted or lowered are wrong.
template <class Format>
HWY_INLINE void EncodeRowBlocks(const TileShape& shape, const float* HWY_RESTRICT in, size_t ld,
                                int32_t* HWY_RESTRICT largest, uint8_t* HWY_RESTRICT out) {
  const size_t groups = (shape.cols + kGroup - 1) / kGroup;
  uint8_t codes[kMaxCols];
  for (size_t r = 0; r < shape.rows; ++r) {
    const float* row = in + r * ld;
    PrefetchRow(row, shape.cols);
    uint8_t* to = Format::kBits == 8 ? out : codes;
    size_t c = 0;
    for (; c + kBlock <= shape.cols; c += kBlock) {
      *largest++ = EncodeRowBlock<Format, kBlock>(row + c, to + c);
    }
    if (c < shape.cols) {
      float tail[kBlock] = {};
      std::memcpy(tail, row + c, (shape.cols - c) * sizeof(float));
      if (shape.cols - c > kGroup) {
        *largest++ = EncodeRowBlock<Format, kBlock>(tail, to + c);
      } else {
        *largest++ = EncodeRowBlock<Format, kGroup>(tail, to + c);
      }
    }
    if (Format::kBits < 8) bp::PackGroups<Format::kBits>(codes, groups, out);
    out += groups * 2 * Format::kBits;
  }
}

template <class Format>
HWY_INLINE void EncodeColumnBlocks(const TileShape& shape, const float* HWY_RESTRICT in, size_t ld,
                                   int32_t* HWY_RESTRICT largest, uint8_t* HWY_RESTRICT out) {
  const IntTag di;
  const FloatTag df;
  const size_t lanes = hn::Lanes(di);
  const size_t groups = (shape.cols + kGroup - 1) / kGroup;
  const size_t whole = shape.cols / kGroup * kGroup;
  const size_t tail = shape.cols - whole;
  // The tile's rows can lie at addresses that share a few lines of the first cache, so that they
  // are kept here rather than read again.
  HWY_ALIGN float copy[kMaxRows * kMaxCols];
  for (size_t r = 0; r < shape.rows; ++r) {
    const float* row = in + r * ld;
    float* to = copy + r * kMaxCols;
    PrefetchRow(row, shape.cols);
    if (tail > 0) {
      hn::StoreU(hn::Zero(df), df, to + whole);
      for (size_t i = lanes; i < kGroup; i += lanes) hn::StoreU(hn::Zero(df), df, to + whole + i);
      std::memcpy(to + whole, row + whole, tail * sizeof(float));
      for (size_t c = whole; c < groups * kGroup; c += lanes) {
        hn::StoreU(hn::Max(hn::LoadU(di, largest + c), Magnitude(to + c)), di, largest + c);
      }
    }
    for (size_t c = 0; c < whole; c += lanes) {
      hn::Store(hn::LoadU(df, row + c), df, to + c);
      hn::StoreU(hn::Max(hn::LoadU(di, largest + c), Magnitude(row + c)), di, largest + c);
    }
  }
  HWY_ALIGN int32_t lowest[kMaxCols];
  for (size_t c = 0; c < groups * kGroup; c += lanes) {
    hn::Store(Lowest<Format>(hn::LoadU(di, largest + c)), di, lowest + c);
  }
  uint8_t codes[kMaxCols];
  for (size_t r = 0; r < shape.rows; ++r) {
    const float* row = copy + r * kMaxCols;
    uint8_t* to = Format::kBits == 8 ? out : codes;
    for (size_t c = 0; c < groups * kGroup; c += lanes) {
      StoreCodes(Format::Code(df, hn::Load(df, row + c), hn::Load(di, lowest + c)), to + c);
    }
    if (Format::kBits < 8) bp::PackGroups<Format::kBits>(codes, groups, out);
    out += groups * 2 * Format::kBits;
  }
}

size_t Blocks(const TileShape& shape) {
  return shape.column_blocks ? shape.cols : shape.rows * ((shape.cols + kBlock - 1) / kBlock);
}

// Whether a block has to be lifted or lowered.
template <class Format>
HWY_INLINE bool IsFarOut(int32_t largest) {
  const int exponent = largest >> 23;
  return largest != 0 && (exponent < kLift + Format::kEmax || exponent > kHigh);
}

// The scale bytes of all blocks. Returns whether one of them is far out.
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

// x * 2^kLift; with integers, as x may be a denormal.
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

// x * 2^-kLower, or a zero of its sign where that is next to nothing; zero for NaN and infinity.
HWY_INLINE int32_t LowerBits(int32_t bits, bool finite) {
  if (!finite) return 0;
  const int32_t magnitude = bits & kMagnitude;
  const int32_t sign = bits & ~kMagnitude;
  return magnitude >> 23 <= kLower ? sign : bits - (kLower << 23);
}

// The tile with its far out blocks lifted or lowered.
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

template <class Format>
HWY_INLINE void EncodeCodes(const TileShape& shape, const float* in, size_t ld, int32_t* largest,
                            uint8_t* codes) {
  if (shape.column_blocks) {
    EncodeColumnBlocks<Format>(shape, in, ld, largest, codes);
  } else {
    EncodeRowBlocks<Format>(shape, in, ld, largest, codes);
  }
}

template <class Format>
void EncodeTile(const TileShape& shape, const float* in, size_t ld, uint8_t* scales,
                uint8_t* codes) {
  HWY_ALIGN int32_t largest[kMaxBlocks] = {};
  EncodeCodes<Format>(shape, in, ld, largest, codes);
  if (HWY_UNLIKELY(ScalesOf<Format>(largest, Blocks(shape), scales))) {
    float rescaled[kMaxRows * kMaxCols];
    Rescale<Format>(shape, in, ld, largest, rescaled);
    std::memset(largest, 0, sizeof(largest));
    EncodeCodes<Format>(shape, rescaled, kMaxCols, largest, codes);
  }
}

// ---- Decoding.

struct Assign {
  static HWY_INLINE Floats Combine(FloatTag, const float*, Floats value) { return value; }
};
struct Add {
  static HWY_INLINE Floats Combine(FloatTag df, const float* out, Floats value) {
    return hn::Add(hn::LoadU(df, out), value);
  }
};

// What blocks are decoded with: values times `factor`, then the bits less `surplus`.
struct Factors {
  HWY_ALIGN int32_t factor[kMaxBlocks];
  HWY_ALIGN int32_t surplus[kMaxBlocks];
};

template <class Format>
HWY_INLINE void FactorsOf(const uint8_t* scales, size_t blocks, Factors* factors) {
  const IntTag di;
  uint8_t padded[kMaxBlocks] = {};
  std::memcpy(padded, scales, blocks);
  for (size_t b = 0; b < kMaxBlocks; b += hn::Lanes(di)) {
    const auto scale = LoadCodes(padded + b);
    const auto raise =
        hn::IfThenElseZero(hn::Lt(scale, hn::Set(di, kLowScale)), hn::Set(di, kRaise << 23));
    const auto factor =
        hn::Add(hn::ShiftLeft<23>(hn::Sub(scale, hn::Set(di, Format::kValueShift))), raise);
    hn::Store(hn::IfThenElse(hn::Eq(scale, hn::Set(di, 255)), hn::Set(di, kNan), factor), di,
              factors->factor + b);
    hn::Store(raise, di, factors->surplus + b);
  }
}

// The elements of codes, exactly, denormals included. A product that is raised by 2^149 counts
// units of the smallest denormal: below 2^23 units the count is the bits.
template <class Format>
HWY_INLINE Floats Elements(FloatTag df, Ints code, Ints factor, Ints surplus) {
  const IntTag di;
  const auto raised = hn::Mul(Format::Value(df, code), hn::BitCast(df, factor));
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

// One group of codes. Its elements have the factors from `factor` and `surplus` on, or all of them
// the first.
template <class Format, class Operation, bool kColumnBlocks>
HWY_INLINE void DecodeGroup(const uint8_t* HWY_RESTRICT codes, const int32_t* HWY_RESTRICT factor,
                            const int32_t* HWY_RESTRICT surplus, float* HWY_RESTRICT out) {
  const IntTag di;
  const FloatTag df;
  for (size_t i = 0; i < kGroup; i += hn::Lanes(df)) {
    const auto f = kColumnBlocks ? hn::Load(di, factor + i) : hn::Set(di, *factor);
    const auto s = kColumnBlocks ? hn::Load(di, surplus + i) : hn::Set(di, *surplus);
    const auto value = Elements<Format>(df, LoadCodes(codes + i), f, s);
    hn::StoreU(Operation::Combine(df, out + i, value), df, out + i);
  }
}

template <class Format, class Operation, bool kColumnBlocks>
HWY_INLINE void DecodeRows(const TileShape& shape, const Factors& factors,
                           const uint8_t* HWY_RESTRICT in, size_t ld, float* HWY_RESTRICT out) {
  const size_t groups = (shape.cols + kGroup - 1) / kGroup;
  const size_t across = (shape.cols + kBlock - 1) / kBlock;
  const size_t whole = shape.cols / kGroup * kGroup;
  const size_t tail = shape.cols - whole;
  const int32_t* factor = factors.factor;
  const int32_t* surplus = factors.surplus;
  uint8_t unpacked[kMaxCols];
  for (size_t r = 0; r < shape.rows; ++r) {
    float* HWY_RESTRICT row = out + r * ld;
    PrefetchRowToWrite(row, shape.cols);
    const uint8_t* codes = in;
    if (Format::kBits < 8) {
      bp::UnpackGroups<Format::kBits>(in, groups, unpacked);
      codes = unpacked;
    }
    size_t c = 0;
    for (; c < whole; c += kGroup) {
      const size_t block = kColumnBlocks ? c : c / kBlock;
      DecodeGroup<Format, Operation, kColumnBlocks>(codes + c, factor + block, surplus + block,
                                                    row + c);
    }
    if (tail > 0) {
      const size_t block = kColumnBlocks ? c : c / kBlock;
      float group[kGroup] = {};
      std::memcpy(group, row + c, tail * sizeof(float));
      DecodeGroup<Format, Operation, kColumnBlocks>(codes + c, factor + block, surplus + block,
                                                    group);
      std::memcpy(row + c, group, tail * sizeof(float));
    }
    if (!kColumnBlocks) {
      factor += across;
      surplus += across;
    }
    in += groups * 2 * Format::kBits;
  }
}

template <class Format, class Operation>
void DecodeTile(const TileShape& shape, const uint8_t* scales, const uint8_t* codes, size_t ld,
                float* out) {
  Factors factors;
  FactorsOf<Format>(scales, Blocks(shape), &factors);
  if (shape.column_blocks) {
    DecodeRows<Format, Operation, true>(shape, factors, codes, ld, out);
  } else {
    DecodeRows<Format, Operation, false>(shape, factors, codes, ld, out);
  }
}

// ---- What is called from outside.

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
// The mode is set outside of the indirect call, across which the compiler moves no arithmetic.
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
