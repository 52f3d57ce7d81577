// Encodes four vectors of elements at a time and packs their codes in registers, for encode-inl.h.

#if defined(EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_FOUR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_FOUR_INL_H_
#undef EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_FOUR_INL_H_
#else
#define EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_FOUR_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/ocp_mx/elements-inl.h"
#include "compression/panel_ahead.h"

HWY_BEFORE_NAMESPACE();
namespace eps::ocp_mx_kernels {
namespace HWY_NAMESPACE {
namespace {

// The rows of a tile are short runs in distant pages, which hardware prefetchers do not follow.
HWY_INLINE void PrefetchFar(const float* row, size_t cols, size_t ld) {
  const float* const far = row + PanelAhead(ld);
  for (size_t c = 0; c < cols; c += kGroup) __builtin_prefetch(far + c, 0, 2);
}
HWY_INLINE void PrefetchNear(const float* row, size_t cols, size_t ld) {
  for (size_t c = 0; c < cols; c += kGroup) __builtin_prefetch(row + kRowsAhead * ld + c, 0, 3);
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

#if HWY_TARGET != HWY_SCALAR

// Returns the largest magnitudes of a block per lane, not yet combined across lanes.
HWY_INLINE Ints LargestOfBlock(const float* in) {
  const size_t lanes = hn::Lanes(IntTag());
  auto largest = Magnitude(in);
  for (size_t i = lanes; i < kBlock; i += lanes) largest = hn::Max(largest, Magnitude(in + i));
  return largest;
}

// Returns the bits of the largest magnitudes of four blocks of a row, in each 128 bits. The blocks
// share the shuffles across lanes.
HWY_INLINE Ints LargestOfFour(const float* in) {
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
  return all;
}

#endif  // HWY_TARGET != HWY_SCALAR

// True if four vectors hold 64 elements, whose codes are packed in registers.
#if HWY_TARGET == HWY_SCALAR
constexpr bool kFourAtOnce = false;
#else
constexpr bool kFourAtOnce = bp::kPacksInRegisters && hn::MaxLanes(IntTag()) == kGroup;
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

using Mixed = hn::Vec<bp::Codes>;

// `lowest` of four vectors, and its exponents.
struct LowestOfFour {
  Ints v0, v1, v2, v3;
  Mixed exponents;
};

// Returns the codes of 64 elements as Format::Code gives them. Those of blocks that have to be
// rescaled are arbitrary codes.
template <class Format>
HWY_INLINE Mixed CodesOfFour(const float* HWY_RESTRICT in, size_t step, const LowestOfFour& l) {
  const IntTag di;
  const FloatTag df;
  const bp::Codes d8;
  const auto x0 = hn::LoadU(df, in);
  const auto x1 = hn::LoadU(df, in + step);
  const auto x2 = hn::LoadU(df, in + 2 * step);
  const auto x3 = hn::LoadU(df, in + 3 * step);
  if constexpr (!Format::kIsFloat) {
    return bp::Mix(Format::Code(df, x0, l.v0), hn::ShiftLeft<8>(Format::Code(df, x1, l.v1)),
                   hn::ShiftLeft<16>(Format::Code(df, x2, l.v2)),
                   hn::ShiftLeft<24>(Format::Code(df, x3, l.v3)));
  } else {
    const auto b0 = Format::Binade(df, x0, l.v0);
    const auto b1 = Format::Binade(df, x1, l.v1);
    const auto b2 = Format::Binade(df, x2, l.v2);
    const auto b3 = Format::Binade(df, x3, l.v3);
    const auto units = bp::Mix(
        Format::Units(df, x0, b0), hn::ShiftLeft<8>(Format::Units(df, x1, b1)),
        hn::ShiftLeft<16>(Format::Units(df, x2, b2)), hn::ShiftLeft<24>(Format::Units(df, x3, b3)));
    const auto binades = hn::BitCast(di, hn::Sub(bp::MixExponents(b0, b1, b2, b3), l.exponents));
    const auto codes = hn::Add(units, hn::BitCast(d8, hn::ShiftLeft<Format::kMantissa>(binades)));
    const auto signs =
        bp::Mix(hn::ShiftRight<24>(hn::BitCast(di, x0)), hn::ShiftRight<16>(hn::BitCast(di, x1)),
                hn::ShiftRight<8>(hn::BitCast(di, x2)), hn::BitCast(di, x3));
    const auto placed = hn::BitCast(d8, hn::ShiftRight<8 - Format::kBits>(hn::BitCast(di, signs)));
    return hn::OrAnd(hn::Min(codes, hn::Set(d8, Format::kLargestCode)), placed,
                     hn::Set(d8, Format::kSignBit));
  }
}

// Stores 64 codes: whole lines past the caches.
template <class Format>
HWY_INLINE void StoreFour(Mixed codes, uint8_t* HWY_RESTRICT out) {
  const bp::Codes d8;
  const auto ordered = bp::InOrder(codes);
  if constexpr (Format::kBits == 8) {
    if (reinterpret_cast<uintptr_t>(out) % (4 * kGroup) == 0) {
      hn::Stream(ordered, d8, out);
    } else {
      hn::StoreU(ordered, d8, out);
    }
  } else if constexpr (Format::kBits == 4) {
    const hn::Repartition<uint16_t, bp::Codes> d16;
    const hn::Half<bp::Codes> half;
    const auto one = hn::BitCast(d16, ordered);
    hn::StoreU(hn::TruncateTo(half, hn::Or(one, hn::ShiftRight<4>(one))), half, out);
  } else {
    bp::StorePacked<Format::kBits>(ordered, out);
  }
}

template <class Format, int kFirst>
HWY_INLINE void EncodeTwoOfFour(const float* HWY_RESTRICT in, Ints lowest, Mixed exponents,
                                uint8_t* HWY_RESTRICT codes) {
  // Byte 4 * i of `exponents` is that of block i.
  constexpr uint32_t kBytes = 4 * kFirst * 0x01010101u + 0x04040000u;
  const hn::Repartition<uint32_t, bp::Codes> d32;
  const auto first = hn::Broadcast<kFirst>(lowest);
  const auto second = hn::Broadcast<kFirst + 1>(lowest);
  const auto of_both =
      hn::TableLookupBytes(exponents, hn::BitCast(bp::Codes(), hn::Set(d32, kBytes)));
  StoreFour<Format>(
      CodesOfFour<Format>(in + kFirst * kBlock, kGroup, {first, first, second, second, of_both}),
      codes + kFirst * kBlock * Format::kBits / 8);
}

// Encodes four blocks of a row. Returns false if one of them has to be rescaled.
template <class Format>
HWY_INLINE bool EncodeFourBlocks(const float* HWY_RESTRICT in, uint8_t* HWY_RESTRICT scales,
                                 uint8_t* HWY_RESTRICT codes) {
  const IntTag di;
  const auto largest = LargestOfFour(in);
  const auto lowest = Lowest<Format>(largest);
  const auto exponents = hn::BitCast(bp::Codes(), hn::ShiftRight<23>(lowest));
  EncodeTwoOfFour<Format, 0>(in, lowest, exponents, codes);
  EncodeTwoOfFour<Format, 2>(in, lowest, exponents, codes);

  const auto exponent = hn::ShiftRight<23>(largest);
  const auto scale = hn::Max(hn::Sub(exponent, hn::Set(di, Format::kEmax)), hn::Zero(di));
  const auto is_nan = hn::Gt(exponent, hn::Set(di, 254));
  uint8_t bytes[kGroup];
  StoreCodes(hn::IfThenElse(is_nan, hn::Set(di, 255), scale), bytes);
  std::memcpy(scales, bytes, 4);
  const auto is_low = hn::AndNot(hn::Eq(largest, hn::Zero(di)),
                                 hn::Lt(exponent, hn::Set(di, kLift + Format::kEmax)));
  return hn::AllFalse(di, hn::Or(is_low, hn::Gt(exponent, hn::Set(di, kHigh))));
}

#endif  // HWY_ARCH_X86

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::ocp_mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_FOUR_INL_H_
