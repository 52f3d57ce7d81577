#ifndef EPS_COMPRESSION_CODECS_MX_KERNELS_H_
#define EPS_COMPRESSION_CODECS_MX_KERNELS_H_

// One tile of mx9, mx6 or mx4 (docs/formats/codecs.md) for the best instruction set of the machine;
// the same bits on every one, whatever the thread's mode for denormals. No function touches a byte
// outside of the tile's elements and its encoded bytes. This header stays free of the standard
// library's templates, because the file that implements it is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

namespace eps::mx_kernels {

// At most 32 x 128 elements, and where its blocks run.
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

// Which of the formats: 7, 4 or 2 magnitude bits.
enum class Format { kMx9, kMx6, kMx4 };

// Encodes in[row * ld + col].
void Encode(Format format, bool truncate, const Tile& tile, const float* in, size_t ld,
            const Planes<uint8_t>& out);

// out[row * ld + col] = the value.
void Decode(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
            float* out);
// out[row * ld + col] += the value, FTZ+DAZ whatever the thread's mode.
void Accumulate(Format format, const Tile& tile, const Planes<const uint8_t>& in, size_t ld,
                float* out);

// The index of the first scale of `n` that is `limit` or more; `n` if there is none.
size_t FirstScaleFrom(const uint8_t* scales, size_t n, uint8_t limit);

}  // namespace eps::mx_kernels

#endif  // EPS_COMPRESSION_CODECS_MX_KERNELS_H_
