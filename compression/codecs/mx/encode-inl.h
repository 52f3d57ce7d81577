// The codes of mx9, mx6 and mx4, and their blocks across rows (docs/formats/codecs.md), for the
// files that encode rows and columns. `kBits` are the magnitude bits of the format.

#if defined(EPS_COMPRESSION_CODECS_MX_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_MX_ENCODE_INL_H_
#undef EPS_COMPRESSION_CODECS_MX_ENCODE_INL_H_
#else
#define EPS_COMPRESSION_CODECS_MX_ENCODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/mx/blocks-inl.h"
#include "compression/codecs/mx/repair-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE IntVector LoadBits(const float* in) {
  return hn::BitCast(Ints(), hn::LoadU(Floats(), in));
}

HWY_INLINE IntVector MagnitudeOf(IntVector bits) {
  return hn::And(bits, hn::Set(Ints(), kMagnitude));
}

// Returns the codes of some elements in the lowest bytes of the lanes, given their bits and, in the
// exponent field of a float, kTop - (E - D) of their pairs, at least 0. For a scale above
// kMostScale the result is meaningless, but within the range of codes.
template <int kBits, bool kTruncate>
HWY_INLINE IntVector Codes(IntVector bits, IntVector lift) {
  const Ints di;
  const Floats df;
  // y = |x| * 2^(kTop - (E - D)), so M = y * 2^(126 + kBits - kTop).
  const auto y = hn::BitCast(df, hn::Add(MagnitudeOf(bits), lift));
  // The sum with this power of two has M, rounded to even, in the last bits of its significand.
  constexpr int32_t kPower = (kTop<kBits> + 24 - kBits) << kExponentAt;
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
  return hn::OrAnd(m, sign, hn::Set(di, 1 << kBits));
}

// Stores the codes of four vectors `stride` bytes apart in `out`, one byte each.
HWY_INLINE void StoreCodes(IntVector v0, IntVector v1, IntVector v2, IntVector v3, uint8_t* out,
                           size_t stride) {
  const CodeBytes d8;
  const auto mask = hn::Set(Ints(), 0xff);
  hn::StoreU(hn::DemoteTo(d8, hn::And(v0, mask)), d8, out);
  hn::StoreU(hn::DemoteTo(d8, hn::And(v1, mask)), d8, out + stride);
  hn::StoreU(hn::DemoteTo(d8, hn::And(v2, mask)), d8, out + 2 * stride);
  hn::StoreU(hn::DemoteTo(d8, hn::And(v3, mask)), d8, out + 3 * stride);
}

// Encodes sixteen rows of Lanes(Floats) columns, one block per column. Elements of a block are
// `step` apart in `in` and `ahead`, their codes, one byte each, `stride` apart in `codes`. The
// scales and the micro bytes of the blocks are contiguous.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeAcross(const float* HWY_RESTRICT in, size_t step, const float* ahead,
                             uint8_t* HWY_RESTRICT scales, uint8_t* HWY_RESTRICT micro,
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
    StoreCodes(Codes<kBits, kTruncate>(bits0, lift01), Codes<kBits, kTruncate>(bits1, lift01),
               Codes<kBits, kTruncate>(bits2, lift23), Codes<kBits, kTruncate>(bits3, lift23),
               codes + i * stride, stride);
  }
  hn::StoreU(hn::DemoteTo(d8, micros), d8, micro);
}

// Writes the micro bytes of four blocks: bit 4 * i + k of `below` is that of element i of block k,
// and only even elements count.
HWY_INLINE void StoreMicro(uint64_t below, uint8_t* micro) {
  for (int k = 0; k < 4; ++k) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_BMI2_FMA)
    micro[k] = static_cast<uint8_t>(_pext_u64(below, uint64_t{0x0101010101010101u} << k));
#else
    // Move the first bit of each of eight bytes into the highest byte.
    const uint64_t pair_bits = below >> k & 0x0101010101010101u;
    micro[k] = static_cast<uint8_t>(pair_bits * 0x0102040810204080u >> 56);
#endif
  }
}

// Returns the micro bits of the pairs that cover a block's first n elements.
HWY_INLINE uint8_t PairsOf(size_t n) { return static_cast<uint8_t>((1u << (n + 1) / 2) - 1); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_MX_ENCODE_INL_H_
