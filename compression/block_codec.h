#ifndef EPS_COMPRESSION_BLOCK_CODEC_H_
#define EPS_COMPRESSION_BLOCK_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "compression/block_tiles.h"
#include "compression/codec.h"

namespace eps {

// The arithmetic of a codec whose tiles consist of blocks with shared scales. Immutable,
// thread-safe. `bytes` are those of one encoded tile with the parts that `layout` places.
class BlockArithmetic {
 public:
  virtual ~BlockArithmetic() = default;
  // Encodes in[row * ld + col] into all of `bytes`.
  virtual void Encode(const Tile& tile, Axis axis, const float* in, size_t ld,
                      const BlockTile& layout, uint8_t* bytes) const = 0;
  // As EncodedChunk::Read.
  virtual void Decode(const Tile& tile, Axis axis, const uint8_t* bytes, const BlockTile& layout,
                      bool accumulate, size_t ld, float* out) const = 0;
  // Return whether the functions below may be used for blocks along rows, and are faster there.
  virtual bool encodes_rows() const { return false; }
  virtual bool decodes_rows() const { return false; }
  // Encode or decode one row of tiles side by side: of tiles of kTileCols columns, or of one
  // narrower tile. `bytes` are those of the first tile; all have the same layout.
  virtual void EncodeRow(const RowPiece& piece, const float* in, const BlockTile& layout,
                         uint8_t* bytes) const;
  virtual void DecodeRow(const RowPiece& piece, const uint8_t* bytes, const BlockTile& layout,
                         float* out) const;
  // Checks only the bytes. Returns false only if every element is admissible in a gradient.
  virtual bool MayBeInadmissible(const uint8_t* bytes, const BlockTile& layout) const = 0;
};

// Returns a codec that lays out its tiles as BlockTiles.
std::unique_ptr<Codec> NewBlockCodec(absl::string_view name, const Codec::Traits& traits,
                                     const BlockFormat& format,
                                     std::shared_ptr<const BlockArithmetic> arithmetic);

}  // namespace eps

#endif  // EPS_COMPRESSION_BLOCK_CODEC_H_
