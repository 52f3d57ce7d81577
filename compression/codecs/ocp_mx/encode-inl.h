// Encodes tiles and rows of tiles of the OCP Microscaling formats, for kernels.cc to include inside
// Highway's foreach_target.

#if defined(EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_INL_H_
#undef EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_INL_H_
#else
#define EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/ocp_mx/encode_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::ocp_mx_kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kAheadInRow = 1024;  // the distance of prefetches within a row, in elements

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
  const auto all = LargestOfFour(in);
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

template <class Format>
HWY_INLINE void EncodeCodes(const TileShape& shape, const float* in, size_t ld, int32_t* largest,
                            uint8_t* out) {
  if (shape.column_blocks && PacksColumns<Format>(shape)) {
    return EncodeColumnBlocks<Format>(shape, in, ld, largest, out);
  }
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

// Encodes any tile.
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

// Encodes one row of a tile with blocks along the row.
template <class Format>
HWY_INLINE void EncodeRowOfTile(const float* in, size_t cols, uint8_t* scales, uint8_t* codes) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if (cols == kMaxCols && HWY_LIKELY(EncodeFourBlocks<Format>(in, scales, codes))) return;
#endif
  EncodeTile<Format>({1, cols, false}, in, cols, scales, codes);
}

template <class Format>
void EncodeRowOfTiles(const float* in, size_t cols, uint8_t* scales, uint8_t* codes,
                      size_t stride) {
  for (size_t begin = 0; begin < cols; begin += kMaxCols) {
    const size_t n = HWY_MIN(cols - begin, kMaxCols);
    for (size_t i = 0; i < n; i += kGroup) __builtin_prefetch(in + begin + kAheadInRow + i, 0, 3);
    const size_t offset = begin / kMaxCols * stride;
    EncodeRowOfTile<Format>(in + begin, n, scales + offset, codes + offset);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::ocp_mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_INL_H_
