// The elements of the float codecs (docs/formats/codecs.md) on vectors, for kernels to include
// inside Highway's foreach_target. A format converts Lanes(df) elements:
//
//   Word                 the unsigned integer that holds one encoded element
//   kMagnitude, kLimit   the word without its sign; the least such word that is inadmissible in a
//                        gradient: of magnitude 2^50 or more, or NaN
//   Load(df, bytes)      floats from encoded elements at any alignment
//   Code(df, floats)     words from floats
//
// Every function gives the same bits on every instruction set, in any mode of the thread for
// denormals.

#if defined(EPS_COMPRESSION_CODECS_FLOATS_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_FLOATS_FORMATS_INL_H_
#undef EPS_COMPRESSION_CODECS_FLOATS_FORMATS_INL_H_
#else
#define EPS_COMPRESSION_CODECS_FLOATS_FORMATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "encoded elements are little-endian");

HWY_BEFORE_NAMESPACE();
namespace eps::float_formats {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Loads Lanes(d) little-endian elements from bytes at any alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* in) {
#if HWY_TARGET == HWY_SCALAR  // a vector of bytes would hold only one byte
  hn::TFromD<D> element;
  std::memcpy(&element, in, sizeof(element));
  return hn::Set(d, element);
#else
  const hn::Repartition<uint8_t, D> d8;
  return hn::BitCast(d, hn::LoadU(d8, in));
#endif
}

// IEEE 754 binary32.
struct Fp32 {
  using Word = uint32_t;
  static constexpr Word kMagnitude = 0x7fffffffu;
  static constexpr Word kLimit = 0x58800000u;  // 2^50

  template <class DF>
  static HWY_INLINE hn::Vec<DF> Load(DF df, const uint8_t* in) {
    return LoadBytes(df, in);
  }
  template <class DF>
  static HWY_INLINE hn::Vec<hn::Rebind<Word, DF> > Code(DF /*df*/, hn::Vec<DF> x) {
    return hn::BitCast(hn::Rebind<Word, DF>(), x);
  }
};

// bfloat16, the upper half of a float.
struct Bf16 {
  using Word = uint16_t;
  static constexpr Word kMagnitude = 0x7fffu;
  static constexpr Word kLimit = 0x5880u;  // 2^50

  template <class DF>
  static HWY_INLINE hn::Vec<DF> Load(DF df, const uint8_t* in) {
    const hn::Rebind<uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> d32;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(d32, LoadBytes(d16, in))));
  }
  template <class DF>
  static HWY_INLINE hn::Vec<hn::Rebind<Word, DF> > Code(DF /*df*/, hn::Vec<DF> x) {
    const hn::RebindToUnsigned<DF> d32;
    const auto bits = hn::BitCast(d32, x);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(d32, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd));
    // Magnitudes are below 2^31, so a signed comparison, which every target has, orders them.
    const hn::RebindToSigned<DF> di;
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(d32, 0x7fffffffu)));
    const auto is_nan = hn::RebindMask(d32, hn::Gt(magnitude, hn::Set(di, 0x7f800000)));
    const auto code = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(d32, 0x40u)), rounded);
    return hn::TruncateTo(hn::Rebind<Word, DF>(), code);
  }
};

// The common part of the formats with narrower exponents than FP32. Codes here have no sign, are in
// 32-bit lanes and below 2^15, so signed comparisons order them.
template <int kMantissaBits, int kBias>
struct Narrow {
  static constexpr int kDropped = 23 - kMantissaBits;
  static constexpr int32_t kRebias = 127 - kBias;
  static constexpr int32_t kLeastNormal = (kRebias + 1) << 23;
  // A float whose unit in the last place is the format's smallest denormal. Denormals of the format
  // become its mantissa bits, and subtracting it gives their values. No relevant operand and no
  // result is an FP32 denormal, so no mode changes a bit.
  static constexpr int32_t kMagic = (kRebias + kDropped + 1) << 23;

  // Returns the power of two at or below finite magnitudes (as FP32 bits), at least kLeastNormal.
  template <class DI>
  static HWY_INLINE hn::Vec<DI> BinadeOf(DI di, hn::Vec<DI> magnitude) {
    return hn::And(hn::Max(magnitude, hn::Set(di, kLeastNormal)), hn::Set(di, 0x7f800000));
  }

  // Returns the bits of magnitudes plus the power of two whose unit in the last place is the
  // element's in that binade, so that the processor rounds to nearest, ties to even. An FP32
  // denormal is too small to matter. The product is exact, so a fused multiply-add gives the same
  // result.
  template <class DI>
  static HWY_INLINE hn::Vec<DI> RoundedIn(DI di, hn::Vec<DI> magnitude, hn::Vec<DI> binade) {
    const hn::RebindToFloat<DI> df;
    return hn::BitCast(
        di, hn::MulAdd(hn::BitCast(df, binade), hn::Set(df, static_cast<float>(1 << kDropped)),
                       hn::BitCast(df, magnitude)));
  }

  // Returns, in the lowest 15 bits, the codes nearest to finite magnitudes. Replaces the element's
  // binade in the bits by the binade counted from the least normal one; rounding up to the next
  // binade carries.
  template <class DI>
  static HWY_INLINE hn::Vec<DI> CodeOf(DI di, hn::Vec<DI> magnitude) {
    const auto binade = BinadeOf(di, magnitude);
    // The lowest bits of the sum's exponent are in bits 23 and up, of which only zeros are kept.
    return hn::Add(hn::Sub(RoundedIn(di, magnitude, binade), binade),
                   hn::ShiftRight<kDropped>(hn::Sub(binade, hn::Set(di, kLeastNormal))));
  }

  // Returns the FP32 bits of finite codes.
  template <class DI>
  static HWY_INLINE hn::Vec<DI> MagnitudeOf(DI di, hn::Vec<DI> code) {
    const hn::RebindToFloat<DI> df;
    const auto normal = hn::Add(hn::ShiftLeft<kDropped>(code), hn::Set(di, kRebias << 23));
    const auto magic = hn::Set(di, kMagic);
    const auto sum = hn::BitCast(df, hn::Or(code, magic));
    const auto denormal = hn::BitCast(di, hn::Sub(sum, hn::BitCast(df, magic)));
    return hn::IfThenElse(hn::Gt(code, hn::Set(di, (1 << kMantissaBits) - 1)), normal, denormal);
  }
};

// binary16. Rounding alone gives infinity beyond the largest value if 2^16 replaces everything
// above it.
struct GenericFp16 : Narrow<10, 15> {
  using Word = uint16_t;
  static constexpr Word kMagnitude = 0x7fffu;
  static constexpr Word kLimit = 0x7c00u;  // every finite value is below 2^50
  static constexpr int32_t kLargest = 0x47800000;

  template <class DI>
  static HWY_INLINE hn::Vec<DI> NanCode(DI di, hn::Vec<DI> magnitude) {
    const auto payload = hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(di, 0x3ff));
    return hn::Or(payload, hn::Set(di, 0x7e00));
  }
  template <class DI>
  static HWY_INLINE hn::Vec<DI> SpecialMagnitude(DI di, hn::Vec<DI> code) {
    const auto infinity = hn::Set(di, 0x7c00);
    const auto quiet = hn::IfThenElseZero(hn::Gt(code, infinity), hn::Set(di, 0x400000));
    return hn::Or(hn::Or(hn::ShiftLeft<kDropped>(code), hn::Set(di, 0x7f800000)), quiet);
  }
};

// arXiv 2209.05433; no infinity.
struct UnsignedE4m3 : Narrow<3, 7> {
  using Word = uint8_t;
  static constexpr Word kMagnitude = 0x7fu;
  static constexpr Word kLimit = 0x7fu;
  static constexpr int32_t kLargest = 0x43e00000;  // 448

  template <class DI>
  static HWY_INLINE hn::Vec<DI> NanCode(DI di, hn::Vec<DI> /*magnitude*/) {
    return hn::Set(di, 0x7f);
  }
  template <class DI>
  static HWY_INLINE hn::Vec<DI> SpecialMagnitude(DI di, hn::Vec<DI> /*code*/) {
    return hn::Set(di, 0x7fc00000);
  }
};

// arXiv 2209.05433; has infinities.
struct UnsignedE5m2 : Narrow<2, 15> {
  using Word = uint8_t;
  static constexpr Word kMagnitude = 0x7fu;
  static constexpr Word kLimit = 0x7cu;
  static constexpr int32_t kLargest = 0x47600000;  // 57344

  template <class DI>
  static HWY_INLINE hn::Vec<DI> NanCode(DI di, hn::Vec<DI> /*magnitude*/) {
    return hn::Set(di, 0x7e);
  }
  template <class DI>
  static HWY_INLINE hn::Vec<DI> SpecialMagnitude(DI di, hn::Vec<DI> code) {
    const auto is_nan = hn::Gt(code, hn::Set(di, 0x7c));
    return hn::IfThenElse(is_nan, hn::Set(di, 0x7fc00000), hn::Set(di, 0x7f800000));
  }
};

// Adds signs, infinities and NaN to a narrow format.
template <class Format>
struct Signed : Format {
  using Word = typename Format::Word;
  static constexpr int kSignShift = 32 - 8 * static_cast<int>(sizeof(Word));

  template <class DF>
  static HWY_INLINE hn::Vec<DF> Load(DF df, const uint8_t* in) {
    const hn::RebindToUnsigned<DF> d32;
    const hn::RebindToSigned<DF> di;
    const auto word = hn::PromoteTo(d32, LoadBytes(hn::Rebind<Word, DF>(), in));
    const auto code = hn::BitCast(di, hn::And(word, hn::Set(d32, uint32_t{Format::kMagnitude})));
    const auto is_special = hn::Gt(code, hn::Set(di, int32_t{Format::kLimit} - 1));
    const auto magnitude = hn::IfThenElse(is_special, Format::SpecialMagnitude(di, code),
                                          Format::MagnitudeOf(di, code));
    const auto sign = hn::And(hn::ShiftLeft<kSignShift>(word), hn::Set(d32, 0x80000000u));
    return hn::BitCast(df, hn::Or(hn::BitCast(d32, magnitude), sign));
  }
  template <class DF>
  static HWY_INLINE hn::Vec<hn::Rebind<Word, DF> > Code(DF /*df*/, hn::Vec<DF> x) {
    const hn::RebindToUnsigned<DF> d32;
    const hn::RebindToSigned<DF> di;
    const auto bits = hn::BitCast(d32, x);
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(d32, 0x7fffffffu)));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
    const auto bounded = hn::Min(magnitude, hn::Set(di, Format::kLargest));
    const auto code =
        hn::IfThenElse(is_nan, Format::NanCode(di, magnitude), Format::CodeOf(di, bounded));
    const auto sign =
        hn::And(hn::ShiftRight<kSignShift>(bits), hn::Set(d32, Format::kMagnitude + 1u));
    return hn::TruncateTo(hn::Rebind<Word, DF>(), hn::Or(hn::BitCast(d32, code), sign));
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)

// The processor converts binary16 exactly as docs/formats/codecs.md specifies, whatever the mode of
// the thread: it rounds to nearest even, makes and reads denormals, and keeps the payload of NaN.
struct Fp16 : GenericFp16 {
  template <class DF>
  static HWY_INLINE hn::Vec<DF> Load(DF df, const uint8_t* in) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(df, hn::BitCast(d16, LoadBytes(hn::Rebind<Word, DF>(), in)));
  }
  template <class DF>
  static HWY_INLINE hn::Vec<hn::Rebind<Word, DF> > Code(DF /*df*/, hn::Vec<DF> x) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::BitCast(hn::Rebind<Word, DF>(), hn::DemoteTo(d16, x));
  }
};

#else

using Fp16 = Signed<GenericFp16>;

#endif

using E4m3 = Signed<UnsignedE4m3>;
using E5m2 = Signed<UnsignedE5m2>;

}  // namespace HWY_NAMESPACE
}  // namespace eps::float_formats
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_FLOATS_FORMATS_INL_H_
