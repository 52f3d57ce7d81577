// mx9, mx6 and mx4: shared microexponents in blocks of 16 (docs/formats/codecs.md).

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "compression/block_tiles.h"
#include "compression/codec.h"
#include "compression/codecs/mx/kernels.h"

namespace eps {
namespace {

constexpr uint32_t kBlock = 16;
// A block's magnitudes are below 2^(scale - 126): up to here all of them are admissible.
constexpr uint8_t kFirstSuspiciousScale = 177;

struct Variant {
  const char* family;
  CodecId id;
  mx_kernels::Format format;
  uint32_t magnitude_bits;

  BlockFormat layout() const { return {kBlock, magnitude_bits + 1, /*micro=*/true}; }
};

constexpr Variant kVariants[] = {{"mx9", CodecId{8}, mx_kernels::Format::kMx9, 7},
                                 {"mx6", CodecId{9}, mx_kernels::Format::kMx6, 4},
                                 {"mx4", CodecId{10}, mx_kernels::Format::kMx4, 2}};

mx_kernels::Tile KernelTile(const Tile& tile, Axis axis) {
  return {tile.rows, tile.cols, axis == Axis::kColumn};
}

template <class Byte>
mx_kernels::Planes<Byte> PlanesAt(Byte* bytes, const BlockTile& layout) {
  return {bytes, bytes + layout.micro, bytes + layout.codes};
}

class MxChunk final : public EncodedChunk {
 public:
  MxChunk(const Variant& variant, const Chunk& chunk, Axis axis, BlockTiles tiles, Bytes bytes)
      : variant_(variant),
        chunk_(chunk),
        axis_(axis),
        tiles_(std::move(tiles)),
        bytes_(std::move(bytes)) {}

  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    const auto planes = PlanesAt(bytes_.data() + tiles_.offset(tile), tiles_.layout(tile));
    const auto decode = accumulate ? mx_kernels::Accumulate : mx_kernels::Decode;
    decode(variant_.format, KernelTile(tile, axis_), planes, ld, out);
  }
  const Bytes& bytes() const override { return bytes_; }

  // OK if all values are admissible as a gradient.
  absl::Status CheckGradient(absl::string_view name) const {
    uint64_t element = chunk_.elements;
    float value = 0;
    ForEachTile(chunk_, [&](const Tile& tile) {
      const Segment& s = chunk_.segments[tile.segment];
      if (tile.offset(s) > element) return;
      const size_t blocks = tiles_.layout(tile).blocks();
      if (mx_kernels::FirstScaleFrom(bytes_.data() + tiles_.offset(tile), blocks,
                                     kFirstSuspiciousScale) == blocks) {
        return;
      }
      float values[kTileRows * kTileCols];
      Read(tile, /*accumulate=*/false, kTileCols, values);
      // Rows of several tiles alternate in the chunk: the first of this tile may not be the first.
      for (uint32_t r = 0; r < tile.rows; ++r) {
        for (uint32_t c = 0; c < tile.cols; ++c) {
          const float v = values[r * kTileCols + c];
          const uint64_t at = tile.offset(s) + uint64_t{r} * s.cols + c;
          if (std::fabs(v) < kMaxGradient || at > element) continue;
          element = at;
          value = v;
        }
      }
    });
    if (element == chunk_.elements) return absl::OkStatus();
    return InadmissibleGradient(name, chunk_, element, value);
  }

 private:
  const Variant& variant_;
  const Chunk& chunk_;
  const Axis axis_;
  const BlockTiles tiles_;
  const Bytes bytes_;
};

class MxEncoder final : public TileEncoder {
 public:
  MxEncoder(const Variant& variant, bool truncate, const Chunk& chunk, const EncodeOptions& options)
      : variant_(variant),
        truncate_(truncate),
        chunk_(chunk),
        axis_(options.axis),
        tiles_(chunk, variant.layout(), options.axis),
        buffer_(tiles_.bytes(), options.kind, options.account) {}

  void Write(const Tile& tile, size_t ld, const float* in) override {
    const auto planes = PlanesAt(buffer_.data() + tiles_.offset(tile), tiles_.layout(tile));
    mx_kernels::Encode(variant_.format, truncate_, KernelTile(tile, axis_), in, ld, planes);
    written_ += uint64_t{tile.rows} * tile.cols;
  }

  Bytes Finish() override {
    EPS_CHECK_MSG(written_ == chunk_.elements, "chunk " << chunk_.id << ": " << written_ << " of "
                                                        << chunk_.elements << " elements written");
    return std::move(buffer_).Freeze();
  }

 private:
  const Variant& variant_;
  const bool truncate_;
  const Chunk& chunk_;
  const Axis axis_;
  const BlockTiles tiles_;
  Buffer buffer_;
  uint64_t written_ = 0;
};

class MxCodec final : public Codec {
 public:
  MxCodec(const Variant& variant, bool truncate, absl::string_view name)
      : variant_(variant), truncate_(truncate), name_(name) {
    traits_.id = variant.id;
    traits_.fixed_size = true;
    traits_.block = kBlock;
    traits_.bits_per_element =
        variant.magnitude_bits + 2;  // sign, and a byte and a bit for 16 and 2
  }

  absl::string_view name() const override { return name_; }
  const Traits& traits() const override { return traits_; }
  size_t MaxEncodedSize(const Chunk& chunk, Axis axis) const override {
    return BlockTiles(chunk, variant_.layout(), axis).bytes();
  }

  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis axis,
                                                           Bytes bytes,
                                                           Content content) const override {
    BlockTiles tiles(chunk, variant_.layout(), axis);
    if (bytes.size() != tiles.bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.id.value(), " of ", chunk.elements, " elements, codec ",
                       name_, ": expected ", tiles.bytes(), " bytes, found ", bytes.size()));
    }
    auto opened =
        std::make_shared<MxChunk>(variant_, chunk, axis, std::move(tiles), std::move(bytes));
    if (content == Content::kGradient) {
      const absl::Status admissible = opened->CheckGradient(name_);
      if (!admissible.ok()) return admissible;
    }
    return std::shared_ptr<const EncodedChunk>(std::move(opened));
  }

  std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                          const EncodeOptions& options) const override {
    return std::make_unique<MxEncoder>(variant_, truncate_, chunk, options);
  }

 private:
  const Variant& variant_;
  const bool truncate_;
  const std::string name_;
  Traits traits_;
};

CodecFamily Family(const Variant& variant) {
  CodecFamily family;
  family.name = variant.family;
  family.id = variant.id;
  family.parameters = "[:truncate]";
  family.examples = {variant.family, absl::StrCat(variant.family, ":truncate")};
  family.create = [&variant](absl::string_view name, const std::vector<std::string>& parameters)
      -> absl::StatusOr<std::unique_ptr<Codec>> {
    const bool truncate = parameters == std::vector<std::string>{"truncate"};
    if (!truncate && !parameters.empty()) {
      return absl::InvalidArgumentError("its only parameter is \"truncate\"");
    }
    std::unique_ptr<Codec> codec = std::make_unique<MxCodec>(variant, truncate, name);
    return codec;
  };
  return family;
}

const CodecRegistration kMx9(Family(kVariants[0]));
const CodecRegistration kMx6(Family(kVariants[1]));
const CodecRegistration kMx4(Family(kVariants[2]));

}  // namespace
}  // namespace eps
