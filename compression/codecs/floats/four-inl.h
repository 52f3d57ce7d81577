// Encodes the 8-bit floats in groups of four vectors of sixteen elements, for kernels.cc to include
// inside Highway's foreach_target. Only rounding is done vector by vector; the rest is done with
// bytes of one vector (block_pack::Mix).

#if defined(EPS_COMPRESSION_CODECS_FLOATS_FOUR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_FLOATS_FOUR_INL_H_
#undef EPS_COMPRESSION_CODECS_FLOATS_FOUR_INL_H_
#else
#define EPS_COMPRESSION_CODECS_FLOATS_FOUR_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "compression/block_codes-inl.h"
#include "compression/codecs/floats/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::float_formats {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

namespace bp = block_pack::HWY_NAMESPACE;

// Sets `codes` to those of in[0 … 63] as Format::Code gives them. Returns false if an element is
// NaN: then they are wrong.
template <class Format>
HWY_INLINE bool FourCodes(const float* HWY_RESTRICT in, hn::Vec<bp::Codes>* codes) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const bp::Codes d8;
  using Ints = hn::Vec<decltype(di)>;
  const auto bits = [&](size_t k) { return hn::BitCast(di, hn::LoadU(df, in + 16 * k)); };
  const auto magnitude = [&](Ints x) { return hn::And(x, hn::Set(di, 0x7fffffff)); };
  const auto bounded = [&](Ints m) { return hn::Min(m, hn::Set(di, Format::kLargest)); };
  const auto binade = [&](Ints m) { return Format::BinadeOf(di, m); };
  const auto sum = [&](Ints m, Ints b) { return Format::RoundedIn(di, m, b); };
  const auto x0 = bits(0), x1 = bits(1), x2 = bits(2), x3 = bits(3);
  const auto a0 = magnitude(x0), a1 = magnitude(x1), a2 = magnitude(x2), a3 = magnitude(x3);
  const auto largest = hn::Max(hn::Max(a0, a1), hn::Max(a2, a3));
  const auto m0 = bounded(a0), m1 = bounded(a1), m2 = bounded(a2), m3 = bounded(a3);
  const auto b0 = binade(m0), b1 = binade(m1), b2 = binade(m2), b3 = binade(m3);
  // The low byte of a sum counts units of the element's binade.
  const auto units = bp::Mix(sum(m0, b0), hn::ShiftLeft<8>(sum(m1, b1)),
                             hn::ShiftLeft<16>(sum(m2, b2)), hn::ShiftLeft<24>(sum(m3, b3)));
  const auto binades = hn::Sub(bp::MixExponents(b0, b1, b2, b3),
                               hn::Set(d8, static_cast<uint8_t>(Format::kLeastNormal >> 23)));
  const auto places =
      hn::BitCast(d8, hn::ShiftLeft<23 - Format::kDropped>(hn::BitCast(di, binades)));
  const auto signs =
      bp::Mix(hn::ShiftRight<24>(x0), hn::ShiftRight<16>(x1), hn::ShiftRight<8>(x2), x3);
  *codes = bp::InOrder(
      hn::OrAnd(hn::Add(units, places), signs, hn::Set(d8, uint8_t{Format::kMagnitude + 1})));
  return hn::AllFalse(di, hn::Gt(largest, hn::Set(di, 0x7f800000)));
}

#endif  // HWY_ARCH_X86

}  // namespace HWY_NAMESPACE
}  // namespace eps::float_formats
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_FLOATS_FOUR_INL_H_
