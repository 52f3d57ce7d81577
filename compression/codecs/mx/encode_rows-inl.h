// Encodes blocks along rows, for kernels.cc to include inside Highway's foreach_target.

#if defined(EPS_COMPRESSION_CODECS_MX_ENCODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_MX_ENCODE_ROWS_INL_H_
#undef EPS_COMPRESSION_CODECS_MX_ENCODE_ROWS_INL_H_
#else
#define EPS_COMPRESSION_CODECS_MX_ENCODE_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/mx/encode-inl.h"
#include "compression/codecs/mx/encode_four-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR && !(HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

// Encodes four consecutive blocks of sixteen elements. Byte k of the 32-bit lanes belongs to block
// k, so exponents are handled for all four at once. Returns false if the vector code cannot handle
// one of the scales.
template <int kBits, bool kTruncate>
HWY_INLINE bool EncodeFourAlong(const float* HWY_RESTRICT in, uint8_t* HWY_RESTRICT scales,
                                uint8_t* HWY_RESTRICT micro, uint8_t* HWY_RESTRICT codes) {
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
    auto exponents = hn::And(hn::ShiftRight<23>(bits0), hn::Set(du, 0x000000ffu));
    exponents = hn::OrAnd(exponents, hn::ShiftRight<15>(bits1), hn::Set(du, 0x0000ff00u));
    exponents = hn::OrAnd(exponents, hn::ShiftRight<7>(bits2), hn::Set(du, 0x00ff0000u));
    exponents = hn::OrAnd(exponents, hn::ShiftLeft<1>(bits3), hn::Set(du, 0xff000000u));
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

  const auto is_zero = hn::Eq(largest, hn::Zero(d8));
  // The lift of a pair at the scale, and below it; blocks of zeros are not lifted.
  const auto lift_if_at_scale =
      hn::IfThenZeroElse(is_zero, hn::SaturatedSub(hn::Set(d8, kTop<kBits>), largest));
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
    StoreCodes(Codes<kBits, kTruncate>(LoadBits(in + i), lift0),
               Codes<kBits, kTruncate>(LoadBits(in + kBlock + i), lift1),
               Codes<kBits, kTruncate>(LoadBits(in + 2 * kBlock + i), lift2),
               Codes<kBits, kTruncate>(LoadBits(in + 3 * kBlock + i), lift3), codes + i, kBlock);
  }
  StoreMicro(~not_below, micro);
  return AreUsual<kBits>(largest);
}

#endif  // HWY_TARGET

// Encodes a row of a tile of kCols elements. Returns false if the vector code cannot handle one of
// the scales.
template <int kBits, bool kTruncate>
HWY_INLINE bool EncodeWholeRow(const float* HWY_RESTRICT in, const Planes<uint8_t>& out) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return EncodeEightAlong<kBits, kTruncate>(in, out);
#else
  HWY_ALIGN uint8_t unpacked[kBits == 7 ? 1 : kCols];
  uint8_t* const codes = kBits == 7 ? out.codes : unpacked;
  bool usual = true;
  for (size_t c = 0; c < kCols; c += kStep) {
    const size_t n = c / kBlock;
#if HWY_TARGET == HWY_SCALAR
    usual = false;
    for (size_t i = n; i < n + 4; ++i) {
      EncodeAcross<kBits, kTruncate>(in + i * kBlock, 1, in, out.scales + i, out.micro + i,
                                     codes + i * kBlock, 1);
    }
#else
    usual &= EncodeFourAlong<kBits, kTruncate>(in + c, out.scales + n, out.micro + n, codes + c);
#endif
  }
  if constexpr (kBits < 7) bp::PackGroups<kBits + 1>(codes, kCols / kBlock, out.codes);
  return usual;
#endif  // HWY_ARCH_X86
}

// Encodes a row of fewer than kCols elements. Returns false as EncodeAlong.
template <int kBits, bool kTruncate>
HWY_INLINE bool EncodeShortRow(const float* in, size_t cols, const Planes<uint8_t>& out) {
  HWY_ALIGN float values[kCols] = {};
  HWY_ALIGN uint8_t codes[kCols];
  uint8_t scales[kCols / kBlock];
  uint8_t micro[kCols / kBlock];
  std::memcpy(values, in, cols * sizeof(float));
  const bool usual = EncodeWholeRow<kBits, kTruncate>(values, {scales, micro, codes});
  const size_t groups = (cols + kBlock - 1) / kBlock;
  // The last block may hold pairs of padding only, whose micro bit must be 0.
  micro[groups - 1] &= PairsOf(cols - (groups - 1) * kBlock);
  std::memcpy(out.scales, scales, groups);
  std::memcpy(out.micro, micro, groups);
  std::memcpy(out.codes, codes, groups * 2 * (kBits + 1));
  return usual;
}

template <int kBits, bool kTruncate>
void EncodeRowOfTiles(const float* in, size_t cols, const Planes<uint8_t>& out, size_t stride) {
  for (size_t begin = 0; begin < cols; begin += kCols) {
    const size_t offset = begin / kCols * stride;
    const Planes<uint8_t> planes{out.scales + offset, out.micro + offset, out.codes + offset};
    const size_t n = HWY_MIN(cols - begin, kCols);
    for (size_t i = 0; i < n; i += kBlock) PrefetchNear(in + begin + kAheadInRow + i);
    const bool usual = n == kCols ? EncodeWholeRow<kBits, kTruncate>(in + begin, planes)
                                  : EncodeShortRow<kBits, kTruncate>(in + begin, n, planes);
    if (HWY_UNLIKELY(!usual)) {
      RepairBlocks<kBits, kTruncate>(Tile{1, n, false}, in + begin, n, planes);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_MX_ENCODE_ROWS_INL_H_
