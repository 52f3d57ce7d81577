#include "compression/block_codec.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "hwy/cache_control.h"

namespace eps {
namespace {

// Calls visit(piece, first tile) for the part of a row piece that lies in tiles of full width, and
// for the rest, which lies in one tile.
template <class Visitor>
void ForEachUniformPart(const RowPiece& piece, const Segment& s, Visitor visit) {
  const uint32_t full = piece.cols / kTileCols * kTileCols;
  const uint32_t top = piece.row / kTileRows * kTileRows;
  const uint32_t rows = std::min(s.rows - top, kTileRows);
  const auto part = [&](uint32_t col, uint32_t cols) {
    if (cols == 0) return;
    visit(RowPiece{piece.segment, piece.row, col, cols},
          Tile{piece.segment, top, col, rows, std::min(cols, kTileCols)});
  };
  part(piece.col, full);
  part(piece.col + full, piece.cols - full);
}

// An opened chunk; borrows `chunk`.
class BlockChunk final : public EncodedChunk {
 public:
  BlockChunk(const Codec* codec, std::shared_ptr<const BlockArithmetic> arithmetic,
             const Chunk& chunk, Axis axis, BlockTiles tiles, Bytes bytes)
      : codec_(codec),
        arithmetic_(std::move(arithmetic)),
        chunk_(chunk),
        axis_(axis),
        tiles_(std::move(tiles)),
        bytes_(std::move(bytes)) {}

  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    const Segment& s = chunk_.segments[tile.segment];
    EPS_DCHECK(tile.row + tile.rows <= s.rows && tile.col + tile.cols <= s.cols);
    arithmetic_->Decode(tile, axis_, bytes_.data() + tiles_.offset(tile), tiles_.layout(tile),
                        accumulate, ld, out);
  }
  bool has_rows() const override { return axis_ == Axis::kRow && arithmetic_->decodes_rows(); }
  void ReadRow(const RowPiece& piece, float* out) const override {
    ForEachUniformPart(piece, chunk_.segments[piece.segment],
                       [&](const RowPiece& part, const Tile& tile) {
                         arithmetic_->DecodeRow(part, bytes_.data() + tiles_.offset(tile),
                                                tiles_.layout(tile), out + part.col - piece.col);
                       });
  }
  const Bytes& bytes() const override { return bytes_; }
  const Codec* codec() const override { return axis_ == Axis::kRow ? codec_ : nullptr; }

  // Returns OK, or the refusal that names the first inadmissible element.
  absl::Status CheckGradient(absl::string_view name) const {
    uint64_t first = chunk_.elements;
    float value = 0;
    ForEachTile(chunk_, [&](const Tile& tile) {
      if (tile.offset(chunk_.segments[tile.segment]) < first &&
          arithmetic_->MayBeInadmissible(bytes_.data() + tiles_.offset(tile),
                                         tiles_.layout(tile))) {
        FindInadmissible(tile, &first, &value);
      }
    });
    if (first == chunk_.elements) return absl::OkStatus();
    return InadmissibleGradient(name, chunk_, first, value);
  }

 private:
  // Sets *first and *value if the tile has an inadmissible element before *first. Rows of several
  // tiles alternate in the chunk, so a later tile may hold an earlier element.
  void FindInadmissible(const Tile& tile, uint64_t* first, float* value) const {
    const Segment& s = chunk_.segments[tile.segment];
    float elements[kTileRows * kTileCols];
    Read(tile, /*accumulate=*/false, kTileCols, elements);
    for (uint32_t r = 0; r < tile.rows; ++r) {
      for (uint32_t c = 0; c < tile.cols; ++c) {
        const uint64_t index = tile.offset(s) + uint64_t{r} * s.cols + c;
        const float element = elements[r * kTileCols + c];
        if (index >= *first) return;
        if (std::abs(element) < kMaxGradient) continue;
        *first = index;
        *value = element;
        return;
      }
    }
  }

  const Codec* const codec_;
  const std::shared_ptr<const BlockArithmetic> arithmetic_;
  const Chunk& chunk_;
  const Axis axis_;
  const BlockTiles tiles_;
  const Bytes bytes_;
};

// Encodes each tile into its place in the buffer.
class BlockEncoder final : public TileEncoder {
 public:
  BlockEncoder(std::shared_ptr<const BlockArithmetic> arithmetic, const BlockFormat& format,
               const Chunk& chunk, const EncodeOptions& options)
      : arithmetic_(std::move(arithmetic)),
        chunk_(chunk),
        axis_(options.axis),
        tiles_(chunk, format, options.axis),
        buffer_(tiles_.bytes(), options.kind, options.account) {}

  void Write(const Tile& tile, size_t ld, const float* in) override {
    arithmetic_->Encode(tile, axis_, in, ld, tiles_.layout(tile),
                        buffer_.data() + tiles_.offset(tile));
    written_ += uint64_t{tile.rows} * tile.cols;
  }

  bool takes_rows() const override { return axis_ == Axis::kRow && arithmetic_->encodes_rows(); }
  void WriteRow(const RowPiece& piece, const float* in) override {
    ForEachUniformPart(
        piece, chunk_.segments[piece.segment], [&](const RowPiece& part, const Tile& tile) {
          if (!IsBesideLast(tile)) {
            last_tile_ = tile;
            last_offset_ = tiles_.offset(tile);
            last_layout_ = tiles_.layout(tile);
          }
          const size_t between = (tile.col - last_tile_.col) / kTileCols;
          arithmetic_->EncodeRow(part, in + part.col - piece.col, last_layout_,
                                 buffer_.data() + last_offset_ + between * last_layout_.bytes);
        });
    written_ += piece.cols;
  }

  Bytes Finish() override {
    EPS_CHECK_MSG(written_ == chunk_.elements, "chunk " << chunk_.id << ": " << written_ << " of "
                                                        << chunk_.elements << " elements written");
    hwy::FlushStream();
    return std::move(buffer_).Freeze();
  }

 private:
  // Returns whether a tile is the last one or to its right, with the same layout.
  bool IsBesideLast(const Tile& tile) const {
    return tile.segment == last_tile_.segment && tile.row == last_tile_.row &&
           tile.rows == last_tile_.rows && tile.cols == last_tile_.cols &&
           tile.col >= last_tile_.col;
  }

  const std::shared_ptr<const BlockArithmetic> arithmetic_;
  const Chunk& chunk_;
  const Axis axis_;
  const BlockTiles tiles_;
  Buffer buffer_;
  uint64_t written_ = 0;  // elements
  // A tile that a row was written to, and its place: computing it takes longer than encoding it.
  Tile last_tile_;
  size_t last_offset_ = 0;
  BlockTile last_layout_;
};

// The codec that NewBlockCodec returns.
class BlockCodec final : public Codec {
 public:
  BlockCodec(absl::string_view name, const Traits& traits, const BlockFormat& format,
             std::shared_ptr<const BlockArithmetic> arithmetic)
      : name_(name), traits_(traits), format_(format), arithmetic_(std::move(arithmetic)) {}

  absl::string_view name() const override { return name_; }
  const Traits& traits() const override { return traits_; }
  size_t MaxEncodedSize(const Chunk& chunk, Axis axis) const override {
    return BlockTiles(chunk, format_, axis).bytes();
  }

  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis axis,
                                                           Bytes bytes,
                                                           Content content) const override {
    BlockTiles tiles(chunk, format_, axis);
    if (bytes.size() != tiles.bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.id.value(), " of ", chunk.elements, " elements, codec ",
                       name_, ": expected ", tiles.bytes(), " bytes, found ", bytes.size()));
    }
    auto opened = std::make_shared<BlockChunk>(this, arithmetic_, chunk, axis, std::move(tiles),
                                               std::move(bytes));
    if (content == Content::kGradient) EPS_RETURN_IF_ERROR(opened->CheckGradient(name_));
    return std::shared_ptr<const EncodedChunk>(std::move(opened));
  }

  std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                          const EncodeOptions& options) const override {
    return std::make_unique<BlockEncoder>(arithmetic_, format_, chunk, options);
  }

 private:
  const std::string name_;
  const Traits traits_;
  const BlockFormat format_;
  const std::shared_ptr<const BlockArithmetic> arithmetic_;
};

}  // namespace

void BlockArithmetic::EncodeRow(const RowPiece& /*piece*/, const float* /*in*/,
                                const BlockTile& /*layout*/, uint8_t* /*bytes*/) const {
  EPS_CHECK_MSG(false, "rows cannot be encoded alone");
}

void BlockArithmetic::DecodeRow(const RowPiece& /*piece*/, const uint8_t* /*bytes*/,
                                const BlockTile& /*layout*/, float* /*out*/) const {
  EPS_CHECK_MSG(false, "rows cannot be decoded alone");
}

std::unique_ptr<Codec> NewBlockCodec(absl::string_view name, const Codec::Traits& traits,
                                     const BlockFormat& format,
                                     std::shared_ptr<const BlockArithmetic> arithmetic) {
  return std::make_unique<BlockCodec>(name, traits, format, std::move(arithmetic));
}

}  // namespace eps
