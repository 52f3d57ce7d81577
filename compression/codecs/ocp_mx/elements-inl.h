// The elements of the OCP Microscaling formats and their codes in memory, for the files that encode
// and decode to include inside Highway's foreach_target.

#if defined(EPS_COMPRESSION_CODECS_OCP_MX_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_OCP_MX_ELEMENTS_INL_H_
#undef EPS_COMPRESSION_CODECS_OCP_MX_ELEMENTS_INL_H_
#else
#define EPS_COMPRESSION_CODECS_OCP_MX_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/block_pack-inl.h"
#include "compression/codecs/ocp_mx/kernels.h"
#include "hwy/highway.h"

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

  static constexpr bool kIsFloat = true;
  static constexpr int kMantissa = kMantissaBits;
  static constexpr uint8_t kLargestCode = kMaxCode;
  static constexpr int kDrop = 23 - kMantissaBits;

  // Returns the power of two at or below |x|, at least `lowest`.
  static HWY_INLINE Ints Binade(FloatTag, Floats x, Ints lowest) {
    const IntTag di;
    const auto magnitude = hn::And(hn::BitCast(di, x), hn::Set(di, kMagnitude));
    return hn::And(hn::Max(magnitude, lowest), hn::Set(di, kInfinity));
  }
  // Rounds by adding the power of two whose unit in the last place is the element's in this binade.
  // Returns the bits of the sum: the low byte counts these units, and the second one is zero. The
  // product is exact, so a fused multiply-add gives the same result.
  static HWY_INLINE Ints Units(FloatTag df, Floats x, Ints binade) {
    const IntTag di;
    const auto magnitude = hn::And(hn::BitCast(di, x), hn::Set(di, kMagnitude));
    return hn::BitCast(
        di, hn::MulAdd(hn::BitCast(df, binade), hn::Set(df, static_cast<float>(1 << kDrop)),
                       hn::BitCast(df, magnitude)));
  }
  // Replaces the element's binade in the bits of the units by the binade counted from `lowest`;
  // rounding up to the next binade carries. The code is in the low byte.
  static HWY_INLINE Ints Code(FloatTag df, Floats x, Ints lowest) {
    const IntTag di;
    const auto binade = Binade(df, x, lowest);
    const auto code = hn::Add(hn::Sub(Units(df, x, binade), binade),
                              hn::ShiftRight<kDrop>(hn::Sub(binade, lowest)));
    return hn::OrAnd(hn::Min(code, hn::Set(di, (kDrop << 23) + kMaxCode)),
                     hn::ShiftRight<32 - kBits>(hn::BitCast(di, x)), hn::Set(di, kSignBit));
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
  static constexpr bool kIsFloat = false;
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

size_t Blocks(const TileShape& shape) {
  return shape.column_blocks ? shape.cols : shape.rows * ((shape.cols + kBlock - 1) / kBlock);
}

size_t Groups(const TileShape& shape) { return shape.rows * ((shape.cols + kGroup - 1) / kGroup); }

// ---- Codes in memory

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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::ocp_mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_OCP_MX_ELEMENTS_INL_H_
