// Encodes those blocks of mx9, mx6 and mx4 again whose scales the vector code cannot handle, for
// encode-inl.h to include inside Highway's foreach_target.

#if defined(EPS_COMPRESSION_CODECS_MX_REPAIR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_MX_REPAIR_INL_H_
#undef EPS_COMPRESSION_CODECS_MX_REPAIR_INL_H_
#else
#define EPS_COMPRESSION_CODECS_MX_REPAIR_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/mx/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

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

#if HWY_TARGET != HWY_SCALAR

// Returns true if IsUsual holds for every byte of a vector.
template <int kBits>
HWY_INLINE bool AreUsual(hn::Vec<hn::Repartition<uint8_t, Ints> > scales) {
  const hn::Repartition<uint8_t, Ints> d8;
  const auto clamped =
      hn::Max(hn::Min(scales, hn::Set(d8, kMostScale<kBits>)), hn::Set(d8, kLeastScale<kBits>));
  return hn::AllTrue(d8, hn::Or(hn::Eq(scales, clamped), hn::Eq(scales, hn::Zero(d8))));
}

#endif  // HWY_TARGET != HWY_SCALAR

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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_MX_REPAIR_INL_H_
