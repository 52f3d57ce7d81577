// Encodes blocks across rows, for encode-inl.h.

#if defined(EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_COLUMNS_INL_H_
#undef EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_COLUMNS_INL_H_
#else
#define EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_COLUMNS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compression/codecs/ocp_mx/encode_four-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::ocp_mx_kernels {
namespace HWY_NAMESPACE {
namespace {

// True if EncodeFourVectors packs: then every row of a tile consists of four vectors at a time.
template <class Format>
HWY_INLINE bool PacksColumns(const TileShape& shape) {
  return kFourAtOnce && shape.cols % (4 * kGroup) == 0;
}

// Stores the codes of four adjacent vectors of columns: packed if `packs`, else one byte each.
template <class Format>
HWY_INLINE void StoreRowOfFour(const float* HWY_RESTRICT in, Ints a, Ints b, Ints c, Ints d,
                               [[maybe_unused]] bool packs, uint8_t* HWY_RESTRICT codes) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if (packs) {
    // The exponents do not depend on the row, so that the compiler computes them once.
    return StoreFour<Format>(
        CodesOfFour<Format>(in, lanes, {a, b, c, d, bp::MixExponents(a, b, c, d)}), codes);
  }
#endif
  StoreCodes(Format::Code(df, hn::Load(df, in), a), codes);
  StoreCodes(Format::Code(df, hn::Load(df, in + lanes), b), codes + lanes);
  StoreCodes(Format::Code(df, hn::Load(df, in + 2 * lanes), c), codes + 2 * lanes);
  StoreCodes(Format::Code(df, hn::Load(df, in + 3 * lanes), d), codes + 3 * lanes);
}

// Encodes the blocks of four adjacent vectors of columns, with `stride` bytes of codes per row
// (StoreRowOfFour).
template <class Format>
HWY_INLINE void EncodeFourVectors(const float* HWY_RESTRICT in, size_t ld, size_t rows,
                                  size_t stride, bool packs, int32_t* HWY_RESTRICT largest,
                                  uint8_t* HWY_RESTRICT codes) {
  const IntTag di;
  const FloatTag df;
  const size_t lanes = hn::Lanes(di);
  // The rows can be at addresses that share a few lines of the first-level cache, so they are
  // copied instead of being read again.
  HWY_ALIGN float copy[kMaxRows * 4 * kGroup];
  auto a = hn::Zero(di);
  auto b = hn::Zero(di);
  auto c = hn::Zero(di);
  auto d = hn::Zero(di);
  float* HWY_RESTRICT to = copy;
  for (size_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT row = in + r * ld;
    // Prefetch half of the next tile now and half in the second pass, which leaves the memory idle.
    PrefetchFar(row, 2 * lanes, ld);
    PrefetchNear(row, 4 * lanes, ld);
    for (size_t i = 0; i < 4 * lanes; i += lanes) hn::Store(hn::LoadU(df, row + i), df, to + i);
    a = hn::Max(a, Magnitude(row));
    b = hn::Max(b, Magnitude(row + lanes));
    c = hn::Max(c, Magnitude(row + 2 * lanes));
    d = hn::Max(d, Magnitude(row + 3 * lanes));
    to += 4 * lanes;
  }
  hn::Store(a, di, largest);
  hn::Store(b, di, largest + lanes);
  hn::Store(c, di, largest + 2 * lanes);
  hn::Store(d, di, largest + 3 * lanes);
  a = Lowest<Format>(a);
  b = Lowest<Format>(b);
  c = Lowest<Format>(c);
  d = Lowest<Format>(d);
  const float* HWY_RESTRICT from = copy;
  for (size_t r = 0; r < rows; ++r) {
    PrefetchFar(in + r * ld + 2 * lanes, 2 * lanes, ld);
    StoreRowOfFour<Format>(from, a, b, c, d, packs, codes);
    from += 4 * lanes;
    codes += stride;
  }
}

// Encodes the blocks of one vector of columns.
template <class Format>
HWY_INLINE void EncodeOneVector(const float* HWY_RESTRICT in, size_t ld, size_t rows, size_t padded,
                                int32_t* HWY_RESTRICT largest, uint8_t* HWY_RESTRICT codes) {
  const IntTag di;
  const FloatTag df;
  auto most = hn::Zero(di);
  for (size_t r = 0; r < rows; ++r) most = hn::Max(most, Magnitude(in + r * ld));
  hn::Store(most, di, largest);
  const auto lowest = Lowest<Format>(most);
  for (size_t r = 0; r < rows; ++r) {
    StoreCodes(Format::Code(df, hn::LoadU(df, in + r * ld), lowest), codes + r * padded);
  }
}

// Writes the codes of a whole tile: packed if PacksColumns, else as EncodeRowBlocks.
template <class Format>
HWY_INLINE void EncodeColumnBlocks(const TileShape& shape, const float* HWY_RESTRICT in, size_t ld,
                                   int32_t* HWY_RESTRICT largest, uint8_t* HWY_RESTRICT codes) {
  const size_t lanes = hn::Lanes(IntTag());
  const size_t padded = (shape.cols + kGroup - 1) / kGroup * kGroup;
  const size_t whole = shape.cols / kGroup * kGroup;
  size_t c = 0;
  if (PacksColumns<Format>(shape)) {
    for (; c < shape.cols; c += 4 * lanes) {
      EncodeFourVectors<Format>(in + c, ld, shape.rows, shape.cols * Format::kBits / 8,
                                /*packs=*/true, largest + c, codes + c * Format::kBits / 8);
    }
    return;
  }
  for (; c + 4 * lanes <= whole; c += 4 * lanes) {
    EncodeFourVectors<Format>(in + c, ld, shape.rows, padded, /*packs=*/false, largest + c,
                              codes + c);
  }
  for (; c < whole; c += lanes) {
    EncodeOneVector<Format>(in + c, ld, shape.rows, padded, largest + c, codes + c);
  }
  if (whole == padded) return;
  HWY_ALIGN float tail[kMaxRows * kGroup] = {};
  for (size_t r = 0; r < shape.rows; ++r) {
    std::memcpy(tail + r * kGroup, in + r * ld + whole, (shape.cols - whole) * sizeof(float));
  }
  for (; c < padded; c += lanes) {
    EncodeOneVector<Format>(tail + c - whole, kGroup, shape.rows, padded, largest + c, codes + c);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::ocp_mx_kernels
HWY_AFTER_NAMESPACE();

#endif  // EPS_COMPRESSION_CODECS_OCP_MX_ENCODE_COLUMNS_INL_H_
