// The OCP Microscaling codecs: tiles of blocks of 32 elements with a shared power of two
// (docs/formats/codecs.md).

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compression/block_codec.h"
#include "compression/codec.h"
#include "compression/codecs/ocp_mx/kernels.h"

namespace eps {
namespace {

using ocp_mx_kernels::Element;
using ocp_mx_kernels::TileShape;

static_assert(kTileRows == ocp_mx_kernels::kMaxRows && kTileCols == ocp_mx_kernels::kMaxCols, "");

// One of the six formats.
struct Format {
  const char* name;
  CodecId id;
  Element element;
  uint32_t code_bits;
  // With scale bytes up to this one, no finite element reaches 2^50.
  uint8_t harmless_scale;
  // The largest finite magnitude code; 255 if every code is finite.
  uint8_t largest_finite;

  BlockFormat blocks() const {
    return {static_cast<uint32_t>(ocp_mx_kernels::kBlock), code_bits, /*micro=*/false};
  }
};

// Returns the largest harmless scale byte. The exponent of an element is at most emax (1 for the -2
// of mxint8), so with a scale of 2^(49 - emax) every element is below 2^50.
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

// One format, which it borrows.
class OcpMxArithmetic final : public BlockArithmetic {
 public:
  explicit OcpMxArithmetic(const Format& format) : format_(format) {}

  void Encode(const Tile& tile, Axis axis, const float* in, size_t ld, const BlockTile& layout,
              uint8_t* bytes) const override {
    ocp_mx_kernels::Encode(format_.element, ShapeOf(tile, axis), in, ld, bytes,
                           bytes + layout.codes);
  }
  void Decode(const Tile& tile, Axis axis, const uint8_t* bytes, const BlockTile& layout,
              bool accumulate, size_t ld, float* out) const override {
    const auto decode = accumulate ? ocp_mx_kernels::Accumulate : ocp_mx_kernels::Decode;
    decode(format_.element, ShapeOf(tile, axis), bytes, bytes + layout.codes, ld, out);
  }
  bool encodes_rows() const override { return ocp_mx_kernels::EncodesRows(); }
  void EncodeRow(const RowPiece& piece, const float* in, const BlockTile& layout,
                 uint8_t* bytes) const override {
    const size_t row = piece.row % kTileRows;
    // A row of codes fills whole groups.
    const size_t groups = (std::min(piece.cols, kTileCols) + kCodeGroup - 1) / kCodeGroup;
    ocp_mx_kernels::EncodeRow(format_.element, in, piece.cols, bytes + row * layout.blocks_across,
                              bytes + layout.codes + row * groups * 2 * format_.code_bits,
                              layout.bytes);
  }
  bool MayBeInadmissible(const uint8_t* bytes, const BlockTile& layout) const override {
    if (ocp_mx_kernels::AnyAbove(bytes, layout.blocks(), 0xff, format_.harmless_scale)) return true;
    return format_.largest_finite < 255 &&
           ocp_mx_kernels::AnyAbove(bytes + layout.codes, layout.bytes - layout.codes, 0x7f,
                                    format_.largest_finite);
  }

 private:
  const Format& format_;
};

CodecFamily Family(const Format& format) {
  return {format.name,
          format.id,
          "",
          {format.name},
          [&format](absl::string_view name, const std::vector<std::string>& parameters)
              -> absl::StatusOr<std::unique_ptr<Codec>> {
            if (!parameters.empty()) return absl::InvalidArgumentError("it has no parameters");
            Codec::Traits traits;
            traits.id = format.id;
            traits.fixed_size = true;
            traits.block = ocp_mx_kernels::kBlock;
            traits.bits_per_element = format.code_bits + 8.0 / ocp_mx_kernels::kBlock;
            return NewBlockCodec(name, traits, format.blocks(),
                                 std::make_shared<OcpMxArithmetic>(format));
          }};
}

const CodecRegistration kRegistrations[] = {
    CodecRegistration(Family(kFormats[0])), CodecRegistration(Family(kFormats[1])),
    CodecRegistration(Family(kFormats[2])), CodecRegistration(Family(kFormats[3])),
    CodecRegistration(Family(kFormats[4])), CodecRegistration(Family(kFormats[5])),
};

}  // namespace
}  // namespace eps
