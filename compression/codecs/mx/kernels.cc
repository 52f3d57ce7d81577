#include "compression/codecs/mx/kernels.h"

#include "base/numerics/flush_denormals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/codecs/mx/kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// After Highway.
#include "compression/codecs/mx/decode-inl.h"
#include "compression/codecs/mx/encode_columns-inl.h"
#include "compression/codecs/mx/encode_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::mx_kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <bool kTruncate>
void EncodeAs(Format format, const Tile& tile, const float* in, size_t ld,
              const Planes<uint8_t>& out) {
  switch (format) {
    case Format::kMx9:
      return EncodeTile<7, kTruncate>(tile, in, ld, out);
    case Format::kMx6:
      return EncodeTile<4, kTruncate>(tile, in, ld, out);
    case Format::kMx4:
      return EncodeTile<2, kTruncate>(tile, in, ld, out);
  }
}

template <class Operation>
void DecodeAs(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
              float* out) {
  switch (format) {
    case Format::kMx9:
      return DecodeTile<7, Operation>(tile, in, ld, out);
    case Format::kMx6:
      return DecodeTile<4, Operation>(tile, in, ld, out);
    case Format::kMx4:
      return DecodeTile<2, Operation>(tile, in, ld, out);
  }
}

template <bool kTruncate>
void EncodeRowAs(Format format, const float* in, size_t cols, const Planes<uint8_t>& out,
                 size_t stride) {
  switch (format) {
    case Format::kMx9:
      return EncodeRowOfTiles<7, kTruncate>(in, cols, out, stride);
    case Format::kMx6:
      return EncodeRowOfTiles<4, kTruncate>(in, cols, out, stride);
    case Format::kMx4:
      return EncodeRowOfTiles<2, kTruncate>(in, cols, out, stride);
  }
}

void EncodeColumnBlocks(Format format, bool truncate, const Tile& tile, const float* in, size_t ld,
                        const Planes<uint8_t>& out) {
  if (truncate) return EncodeAs<true>(format, tile, in, ld, out);
  EncodeAs<false>(format, tile, in, ld, out);
}
void EncodeRowBlocks(Format format, bool truncate, const float* in, size_t cols,
                     const Planes<uint8_t>& out, size_t stride) {
  if (truncate) return EncodeRowAs<true>(format, in, cols, out, stride);
  EncodeRowAs<false>(format, in, cols, out, stride);
}
void DecodeRowBlocks(Format format, const Planes<const uint8_t>& in, size_t stride, size_t cols,
                     float* out) {
  switch (format) {
    case Format::kMx9:
      return DecodeRowOfTiles<7>(in, stride, cols, out);
    case Format::kMx6:
      return DecodeRowOfTiles<4>(in, stride, cols, out);
    case Format::kMx4:
      return DecodeRowOfTiles<2>(in, stride, cols, out);
  }
}
void DecodeAssigned(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                    float* out) {
  DecodeAs<Assign>(format, tile, in, ld, out);
}
void DecodeAdded(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                 float* out) {
  DecodeAs<Add>(format, tile, in, ld, out);
}

size_t FindScaleFrom(const uint8_t* HWY_RESTRICT scales, size_t n, uint8_t limit) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    if (!hn::AllFalse(d, AtLeast(d, hn::LoadU(d, scales + i), limit))) break;
  }
  while (i < n && scales[i] < limit) ++i;
  return i;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::mx_kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::mx_kernels {

HWY_EXPORT(EncodeColumnBlocks);
HWY_EXPORT(EncodeRowBlocks);
HWY_EXPORT(DecodeRowBlocks);
HWY_EXPORT(DecodeAssigned);
HWY_EXPORT(DecodeAdded);
HWY_EXPORT(FindScaleFrom);

void Encode(Format format, bool truncate, const Tile& tile, const float* in, size_t ld,
            const Planes<uint8_t>& out) {
  if (tile.by_column) {
    HWY_DYNAMIC_DISPATCH(EncodeColumnBlocks)(format, truncate, tile, in, ld, out);
    return;
  }
  const size_t groups = (tile.cols + 15) / 16;
  const size_t bytes = groups * 2 * CodeBits(format);
  for (size_t r = 0; r < tile.rows; ++r) {
    EncodeRow(format, truncate, in + r * ld, tile.cols,
              {out.scales + r * groups, out.micro + r * groups, out.codes + r * bytes}, 0);
  }
}

void EncodeRow(Format format, bool truncate, const float* in, size_t cols,
               const Planes<uint8_t>& out, size_t stride) {
  HWY_DYNAMIC_DISPATCH(EncodeRowBlocks)(format, truncate, in, cols, out, stride);
}

void DecodeRow(Format format, const Planes<const uint8_t>& in, size_t stride, size_t cols,
               float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRowBlocks)(format, in, stride, cols, out);
}

void Decode(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
            float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeAssigned)(format, tile, in, ld, out);
}

// Sets the mode outside of the indirect call, across which the compiler moves no arithmetic.
void Accumulate(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                float* out) {
  ScopedFlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(DecodeAdded)(format, tile, in, ld, out);
}

size_t FirstScaleFrom(const uint8_t* scales, size_t n, uint8_t limit) {
  return HWY_DYNAMIC_DISPATCH(FindScaleFrom)(scales, n, limit);
}

}  // namespace eps::mx_kernels
#endif  // HWY_ONCE
