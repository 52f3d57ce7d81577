// The OCP Microscaling codecs: tiles of blocks of 32 elements with a shared power of two
// (docs/formats/codecs.md).

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "compression/block_tiles.h"
#include "compression/codec.h"
#include "compression/codecs/ocp_mx/kernels.h"

namespace eps {
namespace {

using ocp_mx_kernels::Element;
using ocp_mx_kernels::TileShape;

static_assert(kTileRows == ocp_mx_kernels::kMaxRows && kTileCols == ocp_mx_kernels::kMaxCols, "");

struct Format {
  const char* name;
  CodecId id;
  Element element;
  uint32_t code_bits;
  // Under scale bytes up to this one no finite element reaches 2^50.
  uint8_t harmless_scale;
  // The largest magnitude code that is finite; 255 if every code is.
  uint8_t largest_finite;

  BlockFormat blocks() const {
    return {static_cast<uint32_t>(ocp_mx_kernels::kBlock), code_bits, /*micro=*/false};
  }
};

// The exponent of every element is at most emax (1 for the -2 of mxint8), so below 50 under a
// scale of 2^(49 - emax).
constexpr uint8_t HarmlessScale(int emax) { return static_cast<uint8_t>(127 + 49 - emax); }

constexpr Format kFormats[] = {
    {"mxfp8_e4m3", CodecId{16}, Element::kE4m3, 8, HarmlessScale(8), 0x7e},
    {"mxfp8_e5m2", CodecId{17}, Element::kE5m2, 8, HarmlessScale(15), 0x7b},
    {"mxfp6_e2m3", CodecId{18}, Element::kE2m3, 6, HarmlessScale(2), 255},
    {"mxfp6_e3m2", CodecId{19}, Element::kE3m2, 6, HarmlessScale(4), 255},
    {"mxfp4_e2m1", CodecId{20}, Element::kE2m1, 4, HarmlessScale(2), 255},
    {"mxint8", CodecId{21}, Element::kInt8, 8, HarmlessScale(1), 255},
};

TileShape ShapeOf(const Tile& tile, Axis axis) {
  return {tile.rows, tile.cols, axis == Axis::kColumn};
}

class OcpMxChunk final : public EncodedChunk {
 public:
  OcpMxChunk(const Format& format, const Chunk& chunk, Axis axis, Bytes bytes)
      : format_(format),
        chunk_(chunk),
        axis_(axis),
        tiles_(chunk, format.blocks(), axis),
        bytes_(std::move(bytes)) {}

  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    const Segment& s = chunk_.segments[tile.segment];
    EPS_DCHECK(tile.row + tile.rows <= s.rows && tile.col + tile.cols <= s.cols);
    const uint8_t* scales = bytes_.data() + tiles_.offset(tile);
    const uint8_t* codes = scales + tiles_.layout(tile).codes;
    const auto decode = accumulate ? ocp_mx_kernels::Accumulate : ocp_mx_kernels::Decode;
    decode(format_.element, ShapeOf(tile, axis_), scales, codes, ld, out);
  }
  const Bytes& bytes() const override { return bytes_; }
  const BlockTiles& tiles() const { return tiles_; }

  // OK, or the refusal that names the first element that no gradient may have.
  absl::Status CheckGradient() const {
    uint64_t first = chunk_.elements;
    float value = 0;
    ForEachTile(chunk_, [&](const Tile& tile) {
      if (tile.offset(chunk_.segments[tile.segment]) < first && MayBeInadmissible(tile)) {
        FindInadmissible(tile, &first, &value);
      }
    });
    if (first == chunk_.elements) return absl::OkStatus();
    return InadmissibleGradient(format_.name, chunk_, first, value);
  }

 private:
  // By bytes alone: false only if all elements are admissible.
  bool MayBeInadmissible(const Tile& tile) const {
    const BlockTile layout = tiles_.layout(tile);
    const uint8_t* scales = bytes_.data() + tiles_.offset(tile);
    if (ocp_mx_kernels::AnyAbove(scales, layout.blocks(), 0xff, format_.harmless_scale))
      return true;
    return format_.largest_finite < 255 &&
           ocp_mx_kernels::AnyAbove(scales + layout.codes, layout.bytes - layout.codes, 0x7f,
                                    format_.largest_finite);
  }

  // Sets *first and *value if an inadmissible element of the tile comes before *first.
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

  const Format& format_;
  const Chunk& chunk_;
  const Axis axis_;
  const BlockTiles tiles_;
  const Bytes bytes_;
};

class OcpMxEncoder final : public TileEncoder {
 public:
  OcpMxEncoder(const Format& format, const Chunk& chunk, const EncodeOptions& options)
      : format_(format),
        chunk_(chunk),
        axis_(options.axis),
        tiles_(chunk, format.blocks(), options.axis),
        buffer_(tiles_.bytes(), options.kind, options.account) {}

  void Write(const Tile& tile, size_t ld, const float* in) override {
    const BlockTile layout = tiles_.layout(tile);
    EPS_DCHECK(tiles_.offset(tile) == written_);
    uint8_t* scales = buffer_.data() + written_;
    ocp_mx_kernels::Encode(format_.element, ShapeOf(tile, axis_), in, ld, scales,
                           scales + layout.codes);
    written_ += layout.bytes;
  }

  Bytes Finish() override {
    EPS_CHECK_MSG(written_ == buffer_.size(), "chunk " << chunk_.id << ": " << written_ << " of "
                                                       << buffer_.size() << " bytes written");
    return std::move(buffer_).Freeze();
  }

 private:
  const Format& format_;
  const Chunk& chunk_;
  const Axis axis_;
  const BlockTiles tiles_;
  Buffer buffer_;
  size_t written_ = 0;
};

class OcpMxCodec final : public Codec {
 public:
  explicit OcpMxCodec(const Format& format) : format_(format) {
    traits_.id = format.id;
    traits_.fixed_size = true;
    traits_.block = ocp_mx_kernels::kBlock;
    traits_.bits_per_element = format.code_bits + 8.0 / ocp_mx_kernels::kBlock;
  }

  absl::string_view name() const override { return format_.name; }
  const Traits& traits() const override { return traits_; }
  size_t MaxEncodedSize(const Chunk& chunk, Axis axis) const override {
    return BlockTiles(chunk, format_.blocks(), axis).bytes();
  }

  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis axis,
                                                           Bytes bytes,
                                                           Content content) const override {
    const size_t found = bytes.size();
    auto opened = std::make_shared<OcpMxChunk>(format_, chunk, axis, std::move(bytes));
    if (found != opened->tiles().bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chunk ", chunk.id.value(), " of ", chunk.elements, " elements, codec ", format_.name,
          ": expected ", opened->tiles().bytes(), " bytes, found ", found));
    }
    if (content == Content::kGradient) {
      absl::Status status = opened->CheckGradient();
      if (!status.ok()) return status;
    }
    return std::shared_ptr<const EncodedChunk>(std::move(opened));
  }

  std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                          const EncodeOptions& options) const override {
    return std::make_unique<OcpMxEncoder>(format_, chunk, options);
  }

 private:
  const Format& format_;
  Traits traits_;
};

CodecFamily Family(const Format& format) {
  return {format.name,
          format.id,
          "",
          {format.name},
          [&format](absl::string_view /*name*/, const std::vector<std::string>& parameters)
              -> absl::StatusOr<std::unique_ptr<Codec>> {
            if (!parameters.empty()) return absl::InvalidArgumentError("it has no parameters");
            return std::unique_ptr<Codec>(std::make_unique<OcpMxCodec>(format));
          }};
}

const CodecRegistration kRegistrations[] = {
    CodecRegistration(Family(kFormats[0])), CodecRegistration(Family(kFormats[1])),
    CodecRegistration(Family(kFormats[2])), CodecRegistration(Family(kFormats[3])),
    CodecRegistration(Family(kFormats[4])), CodecRegistration(Family(kFormats[5])),
};

}  // namespace
}  // namespace eps
