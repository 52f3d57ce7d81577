#ifndef EPS_COMPRESSION_BLOCK_TILES_H_
#define EPS_COMPRESSION_BLOCK_TILES_H_

// The position of a tile's bytes in a chunk that is encoded in blocks (docs/formats/codecs.md,
// "Tiles of block codecs"). Tiles follow each other in grid order, each as scales, micro bytes and
// codes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/job/layout/chunk_map.h"

namespace eps {

// Codes are stored in groups of 16 along either axis, with `code_bits` * 2 bytes per group.
inline constexpr uint32_t kCodeGroup = 16;

// The properties of a block format that determine the layout.
struct BlockFormat {
  uint32_t block = 0;      // elements along the axis that share a scale
  uint32_t code_bits = 0;  // bits per element
  bool micro = false;      // true if each block has a micro byte
};

// The layout of one encoded tile. Offsets count from its first byte, where the scales begin.
struct BlockTile {
  size_t blocks_across = 0;  // blocks per row of blocks; blocks are numbered row by row
  size_t block_rows = 0;     // the tile's rows; for column blocks, bands of `block` rows
  size_t micro = 0;          // offset of the micro bytes
  size_t codes = 0;          // offset of the codes
  size_t bytes = 0;

  size_t blocks() const { return blocks_across * block_rows; }
};

// Returns the layout of a tile of rows x cols elements.
inline BlockTile LayOutTile(const BlockFormat& format, Axis axis, size_t rows, size_t cols) {
  BlockTile tile;
  const bool along_rows = axis == Axis::kRow;
  tile.blocks_across = along_rows ? (cols + format.block - 1) / format.block : cols;
  tile.block_rows = along_rows ? rows : (rows + format.block - 1) / format.block;
  tile.micro = tile.blocks();
  tile.codes = tile.micro + (format.micro ? tile.blocks() : 0);
  tile.bytes = tile.codes + rows * ((cols + kCodeGroup - 1) / kCodeGroup) * 2 * format.code_bits;
  return tile;
}

// The tiles of one encoded chunk. Immutable, thread-safe; keeps no reference to the chunk.
class BlockTiles {
 public:
  BlockTiles(const Chunk& chunk, const BlockFormat& format, Axis axis)
      : format_(format), axis_(axis) {
    segments_.reserve(chunk.segments.size());
    for (const Segment& s : chunk.segments) {
      segments_.push_back({bytes_, BandBytes(kTileRows, s.cols)});
      bytes_ += s.rows / kTileRows * segments_.back().band_bytes;
      bytes_ += BandBytes(s.rows % kTileRows, s.cols);
    }
  }

  // Returns the bytes of the whole chunk.
  size_t bytes() const { return bytes_; }
  // Returns the offset of the tile's first byte. All earlier tiles of its band have full width, and
  // all earlier bands have full height. REQUIRES a tile of the chunk's grid.
  size_t offset(const Tile& tile) const {
    EPS_DCHECK(tile.row % kTileRows == 0 && tile.col % kTileCols == 0);
    const SegmentBytes& s = segments_[tile.segment];
    return s.offset + tile.row / kTileRows * s.band_bytes +
           tile.col / kTileCols * LayOutTile(format_, axis_, tile.rows, kTileCols).bytes;
  }
  BlockTile layout(const Tile& tile) const {
    return LayOutTile(format_, axis_, tile.rows, tile.cols);
  }

 private:
  // The place of one segment in the encoded bytes.
  struct SegmentBytes {
    size_t offset;
    size_t band_bytes;  // bytes of a band of kTileRows rows
  };

  // Returns the bytes of one band: all tiles side by side with `rows` rows.
  size_t BandBytes(size_t rows, size_t cols) const {
    return cols / kTileCols * LayOutTile(format_, axis_, rows, kTileCols).bytes +
           LayOutTile(format_, axis_, rows, cols % kTileCols).bytes;
  }

  const BlockFormat format_;
  const Axis axis_;
  std::vector<SegmentBytes> segments_;
  size_t bytes_ = 0;
};

}  // namespace eps

#endif  // EPS_COMPRESSION_BLOCK_TILES_H_
