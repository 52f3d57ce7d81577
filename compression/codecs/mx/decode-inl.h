// Decodes rows and tiles of mx9, mx6 and mx4, the inverse of encode-inl.h, for kernels.cc to
// include inside Highway's foreach_target.

#if defined(EPS_COMPRESSION_CODECS_MX_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_MX_DECODE_INL_H_
#undef EPS_COMPRESSION_CODECS_MX_DECODE_INL_H_
#else
#define EPS_COMPRESSION_CODECS_MX_DECODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/mx/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

// Returns the values of some elements, given their codes and scales and the mask of set
// microexponents. Without kAny, no value may be a denormal or NaN, which scales from kBits + 1 to
// 254 guarantee.
template <int kBits, bool kAny>
HWY_INLINE hn::Vec<Floats> Values(IntVector codes, IntVector scale, hn::Mask<Ints> micro) {
  const Ints di;
  const Floats df;
  const auto sign =
      hn::And(hn::ShiftLeft<31 - kBits>(codes), hn::Set(di, static_cast<int32_t>(0x80000000u)));
  const auto m = hn::ConvertTo(df, hn::And(codes, hn::Set(di, (1 << kBits) - 1)));
  const auto one_if_micro = hn::IfThenElseZero(micro, hn::Set(di, 1));
  // The biased exponent of the unit of M.
  const auto unit = hn::Sub(hn::Sub(scale, hn::Set(di, kBits - 1)), one_if_micro);
  if constexpr (!kAny) {
    const auto power = hn::Or(hn::ShiftLeft<kExponentAt>(unit), sign);
    return hn::Mul(m, hn::BitCast(df, power));
  } else {
    const auto normal =
        hn::Add(hn::BitCast(di, m), hn::Sub(hn::ShiftLeft<kExponentAt>(unit), hn::Set(di, kOne)));
    // The value in units of 2^-149, which are the bits of a denormal. The computation stays above
    // FP32's denormals, so no mode of the thread affects it. At a scale of kBits + 1 or more, only
    // zero is below 2^23.
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

// Replaces the output.
struct Assign {
  template <class DF>
  static HWY_INLINE void Store(DF df, hn::Vec<DF> value, float* out) {
    hn::StoreU(value, df, out);
  }
};

// Adds to the output.
struct Add {
  template <class DF>
  static HWY_INLINE void Store(DF df, hn::Vec<DF> value, float* out) {
    hn::StoreU(hn::Add(hn::LoadU(df, out), value), df, out);
  }
};

HWY_INLINE IntVector Widened(const uint8_t* in) {
  return hn::PromoteTo(Ints(), hn::LoadU(CodeBytes(), in));
}

// The inverse of EncodeAcross.
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

// The inverse of EncodeFourAlong for one block.
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

// Decodes whole blocks only, as EncodeBlocks.
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

// Compares unsigned bytes, for which not every target has an instruction.
template <class D>
HWY_INLINE hn::Mask<D> AtLeast(D d, hn::Vec<D> v, uint8_t low) {
  return hn::Eq(hn::Max(v, hn::Set(d, low)), v);
}

// Returns true if all of `n` bytes are at least `low` and at most 254.
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
  // Missing rows of a band have no codes either.
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

template <int kBits, bool kAny>
HWY_INLINE void DecodeBlocksAlong(const Planes<const uint8_t>& in, const uint8_t* codes,
                                  float* HWY_RESTRICT out) {
  for (size_t b = 0; b < kCols / kBlock; ++b) {
    PrefetchToWrite(out + b * kBlock + kAheadInRow);
#if HWY_TARGET == HWY_SCALAR
    DecodeAcross<kBits, kAny, Assign>(in.scales + b, in.micro + b, codes + b * kBlock, 1,
                                      out + b * kBlock, 1);
#else
    DecodeAlong<kBits, kAny, Assign>(in.scales[b], in.micro[b], codes + b * kBlock,
                                     out + b * kBlock);
#endif
  }
}

// Decodes kCols elements: a row of a tile.
template <int kBits>
HWY_INLINE void DecodeTileRow(const Planes<const uint8_t>& in, float* HWY_RESTRICT out) {
  constexpr size_t kBlocks = kCols / kBlock;
  HWY_ALIGN uint8_t unpacked[kBits < 7 ? kCols : 1];
  const uint8_t* codes = in.codes;
  if constexpr (kBits < 7) {
    bp::UnpackGroups<kBits + 1>(in.codes, kBlocks, unpacked);
    codes = unpacked;
  }
  uint8_t least = 255;
  uint8_t most = 0;
  for (size_t b = 0; b < kBlocks; ++b) {
    least = HWY_MIN(least, in.scales[b]);
    most = HWY_MAX(most, in.scales[b]);
  }
  if (HWY_LIKELY(least >= kBits + 1 && most <= 254)) {
    DecodeBlocksAlong<kBits, false>(in, codes, out);
  } else {
    DecodeBlocksAlong<kBits, true>(in, codes, out);
  }
}

template <int kBits>
void DecodeRowOfTiles(const Planes<const uint8_t>& in, size_t stride, size_t cols, float* out) {
  Planes<const uint8_t> row = in;
  size_t begin = 0;
  for (; begin + kCols <= cols; begin += kCols) {
    DecodeTileRow<kBits>(row, out + begin);
    row = {row.scales + stride, row.micro + stride, row.codes + stride};
  }
  if (begin < cols) {
    DecodeTile<kBits, Assign>(Tile{1, cols - begin, false}, row, 0, out + begin);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_MX_DECODE_INL_H_
