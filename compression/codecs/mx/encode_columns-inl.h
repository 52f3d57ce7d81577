// Encodes blocks along columns, for kernels.cc to include inside Highway's foreach_target.

#if defined(EPS_COMPRESSION_CODECS_MX_ENCODE_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_MX_ENCODE_COLUMNS_INL_H_
#undef EPS_COMPRESSION_CODECS_MX_ENCODE_COLUMNS_INL_H_
#else
#define EPS_COMPRESSION_CODECS_MX_ENCODE_COLUMNS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/mx/encode_four-inl.h"
#include "compression/panel_ahead.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

// Memory that is needed soon: elements laid out like the tile's, and the place of the encoded
// bytes.
struct Ahead {
  const float* in;
  const char* out;
  size_t out_bytes;
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// As EncodeBlocks, for whole groups of four vectors of columns.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeFours(const Tile& tile, const float* in, size_t ld, const Ahead& ahead,
                            const Planes<uint8_t>& out) {
  const size_t row_bytes = tile.cols * (kBits + 1) / 8;
  for (size_t r = 0; r < tile.rows; r += kBlock) {
    const size_t first = r / kBlock * tile.cols;
    for (size_t c = 0; c < tile.cols; c += kStep) {
      EncodeFourAcross<kBits, kTruncate>(
          in + r * ld + c, ld, ahead.in + r * ld + c, out.scales + first + c, out.micro + first + c,
          out.codes + r * row_bytes + c * (kBits + 1) / 8, row_bytes);
    }
  }
}

#endif  // HWY_ARCH_X86

// Encodes whole blocks along columns: cols and rows are multiples of kBlock.
template <int kBits, bool kTruncate>
HWY_INLINE void EncodeBlocks(const Tile& tile, const float* in, size_t ld, const Ahead& ahead,
                             const Planes<uint8_t>& out) {
  const size_t groups = tile.cols / kBlock;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if (tile.cols % kStep == 0) return EncodeFours<kBits, kTruncate>(tile, in, ld, ahead, out);
#endif
  // Codes are stored as bytes, in a buffer that is packed afterwards if they are narrower.
  constexpr bool kDirect = kBits == 7;
  HWY_ALIGN uint8_t unpacked[kDirect ? 1 : kRows * kCols];
  uint8_t* const codes = kDirect ? out.codes : unpacked;
  const size_t out_step = ahead.out_bytes * kStep / (tile.rows * tile.cols);
  const char* ahead_out = ahead.out;
  const size_t lanes = hn::Lanes(Floats());
  for (size_t r = 0; r < tile.rows; r += kBlock) {
    const size_t first = r / kBlock * tile.cols;
    for (size_t c = 0; c < tile.cols; c += lanes) {
      for (size_t i = 0; i < lanes * kBlock; i += kStep, ahead_out += out_step) {
        PrefetchToWrite(ahead_out);
      }
      EncodeAcross<kBits, kTruncate>(in + r * ld + c, ld, ahead.in + r * ld + c,
                                     out.scales + first + c, out.micro + first + c,
                                     codes + r * tile.cols + c, tile.cols);
    }
  }
  if constexpr (!kDirect) bp::PackGroups<kBits + 1>(codes, tile.rows * groups, out.codes);
}

template <int kBits, bool kTruncate>
void EncodeRagged(const Padded& padded, const float* in, size_t ld, const Planes<uint8_t>& out) {
  const Tile& tile = padded.tile;
  const Tile& whole = padded.whole;
  HWY_ALIGN float values[kRows * kCols];
  uint8_t codes[kRows * kCols];
  uint8_t scales[kMostBlocks];
  uint8_t micro[kMostBlocks];
  std::memset(values, 0, whole.rows * whole.cols * sizeof(float));
  for (size_t r = 0; r < tile.rows; ++r) {
    std::memcpy(values + r * whole.cols, in + r * ld, tile.cols * sizeof(float));
  }
  const Ahead ahead{values, reinterpret_cast<const char*>(codes), 0};
  EncodeBlocks<kBits, kTruncate>(whole, values, whole.cols, ahead, {scales, micro, codes});
  // The last blocks may hold pairs of padding only, whose micro bit must be 0.
  const uint8_t pairs = PairsOf(tile.rows - (padded.down - 1) * kBlock);
  uint8_t* const last = micro + (padded.down - 1) * padded.whole_across;
  for (size_t c = 0; c < padded.whole_across; ++c) last[c] &= pairs;
  for (size_t r = 0; r < padded.down; ++r) {
    std::memcpy(out.scales + r * padded.across, scales + r * padded.whole_across, padded.across);
    std::memcpy(out.micro + r * padded.across, micro + r * padded.whole_across, padded.across);
  }
  constexpr size_t kGroupBytes = 2 * (kBits + 1);
  for (size_t r = 0; r < tile.rows; ++r) {
    std::memcpy(out.codes + r * padded.groups * kGroupBytes,
                codes + r * (whole.cols / kBlock) * kGroupBytes, padded.groups * kGroupBytes);
  }
}

template <int kBits, bool kTruncate>
void EncodeTile(const Tile& tile, const float* in, size_t ld, const Planes<uint8_t>& out) {
  const Padded padded(tile);
  if (padded.ragged()) {
    EncodeRagged<kBits, kTruncate>(padded, in, ld, out);
  } else {
    const size_t bytes =
        static_cast<size_t>(out.codes - out.scales) + tile.rows * padded.groups * 2 * (kBits + 1);
    EncodeBlocks<kBits, kTruncate>(
        tile, in, ld,
        {in + PanelAhead(ld), reinterpret_cast<const char*>(out.scales + bytes), bytes}, out);
  }
  RepairBlocks<kBits, kTruncate>(tile, in, ld, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_MX_ENCODE_COLUMNS_INL_H_
