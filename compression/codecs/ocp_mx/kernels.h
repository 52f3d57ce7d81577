#ifndef EPS_COMPRESSION_CODECS_OCP_MX_KERNELS_H_
#define EPS_COMPRESSION_CODECS_OCP_MX_KERNELS_H_

// The inner loops of the OCP Microscaling codecs, for the best instruction set of the machine. They
// process one tile at a time (docs/formats/codecs.md, "Tiles of block codecs"). Every function
// gives the same bits on every instruction set, in any mode of the thread for denormals. No
// function accesses a byte outside of its tile. This header is free of standard library templates,
// because the file that implements it is compiled once per instruction set.

#include <cstddef>
#include <cstdint>

namespace eps::ocp_mx_kernels {

inline constexpr size_t kBlock = 32;
inline constexpr size_t kMaxRows = 32;
inline constexpr size_t kMaxCols = 128;

enum class Element { kE4m3, kE5m2, kE2m3, kE3m2, kE2m1, kInt8 };

// The shape of a tile and the axis of its blocks. REQUIRES at most kMaxRows x kMaxCols.
struct TileShape {
  size_t rows = 0;
  size_t cols = 0;
  bool column_blocks = false;
};

// Encodes in[r * ld + c] into a tile's scales and codes. Whole cache lines of codes may bypass the
// caches: call hwy::FlushStream() before another thread may read them.
void Encode(Element element, const TileShape& shape, const float* in, size_t ld, uint8_t* scales,
            uint8_t* codes);

// Returns whether EncodeRow is faster than Encode on this machine.
bool EncodesRows();
// Encodes a row of adjacent tiles with blocks along the row: of tiles of kMaxCols columns, `stride`
// bytes apart, or of one narrower tile. `scales` and `codes` are those of the row in the first
// tile.
void EncodeRow(Element element, const float* in, size_t cols, uint8_t* scales, uint8_t* codes,
               size_t stride);

// out[r * ld + c] = element (r, c) of the tile. Arbitrary bytes are a valid tile.
void Decode(Element element, const TileShape& shape, const uint8_t* scales, const uint8_t* codes,
            size_t ld, float* out);

// out[r * ld + c] += that element, with FTZ+DAZ in any mode of the thread.
void Accumulate(Element element, const TileShape& shape, const uint8_t* scales,
                const uint8_t* codes, size_t ld, float* out);

// Returns true if (byte & mask) > limit for any of `n` bytes.
bool AnyAbove(const uint8_t* in, size_t n, uint8_t mask, uint8_t limit);

}  // namespace eps::ocp_mx_kernels

#endif  // EPS_COMPRESSION_CODECS_OCP_MX_KERNELS_H_
