// mx9, mx6 and mx4: shared microexponents in blocks of 16 (docs/formats/codecs.md).

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compression/block_codec.h"
#include "compression/codec.h"
#include "compression/codecs/mx/kernels.h"

namespace eps {
namespace {

constexpr uint32_t kBlock = 16;
// A block's magnitudes are below 2^(scale - 126), so all blocks with smaller scales are admissible.
constexpr uint8_t kFirstSuspiciousScale = 177;

// One of the three formats.
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

// Returns the place of a row in a tile's planes, for blocks along rows.
template <class Byte>
mx_kernels::Planes<Byte> RowAt(const mx_kernels::Planes<Byte>& planes, const RowPiece& piece,
                               const BlockTile& layout, size_t code_bits) {
  const size_t blocks = piece.row % kTileRows * layout.blocks_across;  // in the rows above
  return {planes.scales + blocks, planes.micro + blocks, planes.codes + blocks * 2 * code_bits};
}

// One variant, rounding or truncating; borrows `variant`.
class MxArithmetic final : public BlockArithmetic {
 public:
  MxArithmetic(const Variant& variant, bool truncate) : variant_(variant), truncate_(truncate) {}

  void Encode(const Tile& tile, Axis axis, const float* in, size_t ld, const BlockTile& layout,
              uint8_t* bytes) const override {
    mx_kernels::Encode(variant_.format, truncate_, KernelTile(tile, axis), in, ld,
                       PlanesAt(bytes, layout));
  }
  void Decode(const Tile& tile, Axis axis, const uint8_t* bytes, const BlockTile& layout,
              bool accumulate, size_t ld, float* out) const override {
    const auto decode = accumulate ? mx_kernels::Accumulate : mx_kernels::Decode;
    decode(variant_.format, KernelTile(tile, axis), PlanesAt(bytes, layout), ld, out);
  }
  bool encodes_rows() const override { return true; }
  bool decodes_rows() const override { return true; }
  void EncodeRow(const RowPiece& piece, const float* in, const BlockTile& layout,
                 uint8_t* bytes) const override {
    mx_kernels::EncodeRow(variant_.format, truncate_, in, piece.cols,
                          RowAt(PlanesAt(bytes, layout), piece, layout, code_bits()), layout.bytes);
  }
  void DecodeRow(const RowPiece& piece, const uint8_t* bytes, const BlockTile& layout,
                 float* out) const override {
    mx_kernels::DecodeRow(variant_.format,
                          RowAt(PlanesAt(bytes, layout), piece, layout, code_bits()), layout.bytes,
                          piece.cols, out);
  }
  bool MayBeInadmissible(const uint8_t* bytes, const BlockTile& layout) const override {
    return mx_kernels::FirstScaleFrom(bytes, layout.blocks(), kFirstSuspiciousScale) !=
           layout.blocks();
  }

 private:
  size_t code_bits() const { return variant_.magnitude_bits + 1; }

  const Variant& variant_;
  const bool truncate_;
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
    Codec::Traits traits;
    traits.id = variant.id;
    traits.fixed_size = true;
    traits.block = kBlock;
    // The sign, one byte per 16 elements, one bit per 2.
    traits.bits_per_element = variant.magnitude_bits + 2;
    return NewBlockCodec(name, traits, variant.layout(),
                         std::make_shared<MxArithmetic>(variant, truncate));
  };
  return family;
}

const CodecRegistration kMx9(Family(kVariants[0]));
const CodecRegistration kMx6(Family(kVariants[1]));
const CodecRegistration kMx4(Family(kVariants[2]));

}  // namespace
}  // namespace eps
