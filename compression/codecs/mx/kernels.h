#ifndef EPS_COMPRESSION_CODECS_MX_KERNELS_H_
#define EPS_COMPRESSION_CODECS_MX_KERNELS_H_

// Encodes and decodes one tile of mx9, mx6 or mx4 (docs/formats/codecs.md), for the best
// instruction set of the machine. Gives the same bits on every instruction set, in any mode of the
// thread for denormals. No function accesses a byte outside of the tile's elements and its encoded
// bytes. This header is free of standard library templates, because the file that implements it is
// compiled once per instruction set.

#include <cstddef>
#include <cstdint>

namespace eps::mx_kernels {

// A tile of at most 32 x 128 elements, and the direction of its blocks.
struct Tile {
  size_t rows = 0;
  size_t cols = 0;
  bool by_column = false;
};

// The three planes of an encoded tile.
template <class Byte>
struct Planes {
  Byte* scales = nullptr;
  Byte* micro = nullptr;
  Byte* codes = nullptr;
};

// The format: 7, 4 or 2 magnitude bits.
enum class Format { kMx9, kMx6, kMx4 };

// Returns the bits of one code: magnitude and sign.
constexpr size_t CodeBits(Format format) {
  return format == Format::kMx9 ? 8 : format == Format::kMx6 ? 5 : 3;
}

// Encodes in[row * ld + col]. Whole cache lines of codes may bypass the caches: call
// hwy::FlushStream() before another thread may read them.
void Encode(Format format, bool truncate, const Tile& tile, const float* in, size_t ld,
            const Planes<uint8_t>& out);

// Encodes a row of adjacent tiles with blocks along the row: of tiles of 128 columns, `stride`
// bytes apart, or of one narrower tile. `out` is the place of the row in the first tile.
void EncodeRow(Format format, bool truncate, const float* in, size_t cols,
               const Planes<uint8_t>& out, size_t stride);
// The inverse: out[col] = the value.
void DecodeRow(Format format, const Planes<const uint8_t>& in, size_t stride, size_t cols,
               float* out);

// out[row * ld + col] = the value.
void Decode(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
            float* out);
// out[row * ld + col] += the value, with FTZ+DAZ in any mode of the thread.
void Accumulate(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                float* out);

// Returns the index of the first of `n` scales that is at least `limit`; `n` if there is none.
size_t FirstScaleFrom(const uint8_t* scales, size_t n, uint8_t limit);

}  // namespace eps::mx_kernels

#endif  // EPS_COMPRESSION_CODECS_MX_KERNELS_H_
