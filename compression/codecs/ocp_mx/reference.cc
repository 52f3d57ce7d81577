// The OCP Microscaling formats in plain scalar C++: docs/formats/codecs.md, block by block. Values
// are doubles made from the bits of the floats, so nothing here depends on how the thread treats
// FP32 denormals.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "compression/reference_codec.h"

namespace eps {
namespace {

constexpr uint32_t kBlock = 32;
constexpr uint32_t kGroup = 16;
constexpr uint32_t kNan = 0x7fc00000u;
constexpr uint32_t kInfinity = 0x7f800000u;

// The format of an element: sign, `exponent_bits`, `mantissa_bits`; mxint8 has no exponent bits.
struct ElementFormat {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  double largest;
  int emax;
  // The lowest magnitude codes of infinity and NaN; 256 if the format has none.
  uint32_t infinity;
  uint32_t nan;

  bool is_integer() const { return exponent_bits == 0; }
  uint32_t bits() const { return 1 + exponent_bits + mantissa_bits; }
  uint32_t sign_bit() const { return 1u << (bits() - 1); }
};

constexpr ElementFormat kFormats[] = {
    {"mxfp8_e4m3", 4, 3, 7, 448, 8, 256, 0x7f}, {"mxfp8_e5m2", 5, 2, 15, 57344, 15, 0x7c, 0x7d},
    {"mxfp6_e2m3", 2, 3, 1, 7.5, 2, 256, 256},  {"mxfp6_e3m2", 3, 2, 3, 28, 4, 256, 256},
    {"mxfp4_e2m1", 2, 1, 1, 6, 2, 256, 256},    {"mxint8", 0, 7, 0, 127.0 / 64, 0, 256, 256},
};

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

bool IsFinite(uint32_t bits) { return (bits & kInfinity) != kInfinity; }

// Returns |x| of a finite float.
double MagnitudeOf(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 23 & 255);
  const uint32_t fraction = bits & 0x7fffffu;
  if (exponent == 0) return std::ldexp(fraction, -149);
  return std::ldexp(fraction | 0x800000u, exponent - 150);
}

// Returns the bits of the float of that magnitude; infinity if it is beyond all floats. REQUIRES a
// magnitude that is a float or beyond all floats.
uint32_t BitsOfMagnitude(double magnitude) {
  if (magnitude >= std::ldexp(1.0, 128)) return kInfinity;
  if (magnitude < std::ldexp(1.0, -126)) {
    return static_cast<uint32_t>(std::ldexp(magnitude, 149));
  }
  int exponent;  // magnitude is in [2^(exponent - 1), 2^exponent)
  const double fraction = std::frexp(magnitude, &exponent);
  return static_cast<uint32_t>(exponent + 126) << 23 |
         (static_cast<uint32_t>(std::ldexp(fraction, 24)) & 0x7fffffu);
}

double RoundHalfToEven(double x) {
  const double down = std::floor(x);
  const double rest = x - down;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(down, 2.0) != 0)) return down + 1;
  return down;
}

// Returns the exponent of the unit of which elements of magnitude y are multiples.
int UnitExponent(const ElementFormat& format, double y) {
  if (format.is_integer()) return -6;
  const int lowest = 1 - format.bias;
  const int exponent = y > 0 ? std::max(std::ilogb(y), lowest) : lowest;
  return exponent - format.mantissa_bits;
}

// Returns the code of the element nearest to the magnitude y, with that sign.
uint32_t CodeOf(const ElementFormat& format, double y, bool negative) {
  const int unit = UnitExponent(format, y);
  const double value =
      std::min(std::ldexp(RoundHalfToEven(std::ldexp(y, -unit)), unit), format.largest);
  if (format.is_integer()) {
    const int code = static_cast<int>(std::ldexp(value, 6));
    return static_cast<uint32_t>(negative ? -code : code) & 255u;
  }
  const int value_unit = UnitExponent(format, value);  // rounding may reach the next binade
  const uint32_t significand = static_cast<uint32_t>(std::ldexp(value, -value_unit));
  const uint32_t implicit = 1u << format.mantissa_bits;
  uint32_t code = significand;  // the code of a denormal
  if (significand >= implicit) {
    const uint32_t exponent = value_unit + format.mantissa_bits + format.bias;
    code = exponent << format.mantissa_bits | (significand - implicit);
  }
  return negative ? code | format.sign_bit() : code;
}

// Returns the bits of the float that a code represents with scale byte s.
uint32_t ValueOf(const ElementFormat& format, uint32_t code, uint32_t s) {
  if (s == 255) return kNan;
  const int shared = static_cast<int>(s) - 127;
  if (format.is_integer()) {
    const int integer = code < 128 ? static_cast<int>(code) : static_cast<int>(code) - 256;
    const uint32_t sign = integer < 0 ? 0x80000000u : 0;
    return BitsOfMagnitude(std::ldexp(std::abs(integer), shared - 6)) | sign;
  }
  const uint32_t sign = (code & format.sign_bit()) != 0 ? 0x80000000u : 0;
  const uint32_t magnitude = code & (format.sign_bit() - 1);
  if (magnitude >= format.nan) return kNan;
  if (magnitude >= format.infinity) return kInfinity | sign;
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const uint32_t implicit = 1u << format.mantissa_bits;
  const uint32_t fraction = magnitude & (implicit - 1);
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - format.bias - format.mantissa_bits)
                                     : std::ldexp(implicit + fraction,
                                                  exponent - format.bias - format.mantissa_bits);
  return BitsOfMagnitude(std::ldexp(value, shared)) | sign;
}

// The layout of a tile's scales and codes.
struct TileBytes {
  TileBytes(const Tile& tile, Axis axis, uint32_t bits) : tile(tile), axis(axis), bits(bits) {}

  uint32_t BlocksPerLine() const {
    return ((axis == Axis::kRow ? tile.cols : tile.rows) + kBlock - 1) / kBlock;
  }
  size_t Scales() const {
    return size_t{BlocksPerLine()} * (axis == Axis::kRow ? tile.rows : tile.cols);
  }
  size_t BlockOf(uint32_t r, uint32_t c) const {
    if (axis == Axis::kRow) return size_t{r} * BlocksPerLine() + c / kBlock;
    return size_t{r / kBlock} * tile.cols + c;
  }
  size_t Size() const { return Scales() + tile.rows * RowBytes(); }
  size_t RowBytes() const { return (tile.cols + kGroup - 1) / kGroup * size_t{2} * bits; }
  // Returns the first bit of a code, counted from the tile's first byte.
  size_t BitOf(uint32_t r, uint32_t c) const {
    return 8 * (Scales() + r * RowBytes() + c / kGroup * size_t{2} * bits) + c % kGroup * bits;
  }

  const Tile& tile;
  const Axis axis;
  const uint32_t bits;
};

// The reference of one format.
class OcpMxReference final : public ReferenceCodec {
 public:
  explicit OcpMxReference(const ElementFormat& format) : format_(format) {}

  std::string Encode(const Chunk& chunk, Axis axis, const float* elements,
                     float* /*residual_or_null*/) const override {
    std::string bytes;
    ForEachTile(chunk, [&](const Tile& tile) {
      const Segment& s = chunk.segments[tile.segment];
      bytes += EncodeTile(tile, axis, elements + tile.offset(s), s.cols);
    });
    return bytes;
  }

  void Decode(const Chunk& chunk, Axis axis, absl::string_view bytes,
              float* elements) const override {
    size_t at = 0;
    ForEachTile(chunk, [&](const Tile& tile) {
      const Segment& s = chunk.segments[tile.segment];
      const TileBytes place(tile, axis, format_.bits());
      DecodeTile(place, bytes.substr(at, place.Size()), elements + tile.offset(s), s.cols);
      at += place.Size();
    });
  }

 private:
  std::string EncodeTile(const Tile& tile, Axis axis, const float* in, size_t ld) const {
    const TileBytes place(tile, axis, format_.bits());
    std::string bytes(place.Size(), '\0');
    for (size_t block = 0; block < place.Scales(); ++block) {
      double largest = 0;
      bool finite = true;
      ForEachOf(place, block, [&](uint32_t r, uint32_t c) {
        const uint32_t bits = BitsOf(in[r * ld + c]);
        finite = finite && IsFinite(bits);
        if (IsFinite(bits)) largest = std::max(largest, MagnitudeOf(bits));
      });
      if (!finite) {
        bytes[block] = '\xff';
        continue;
      }
      const int shared = largest > 0 ? std::max(std::ilogb(largest) - format_.emax, -127) : -127;
      bytes[block] = static_cast<char>(shared + 127);
      ForEachOf(place, block, [&](uint32_t r, uint32_t c) {
        const uint32_t bits = BitsOf(in[r * ld + c]);
        const uint32_t code =
            CodeOf(format_, std::ldexp(MagnitudeOf(bits), -shared), bits >> 31 != 0);
        for (uint32_t i = 0; i < format_.bits(); ++i) {
          const size_t bit = place.BitOf(r, c) + i;
          bytes[bit / 8] = static_cast<char>(bytes[bit / 8] | (code >> i & 1u) << bit % 8);
        }
      });
    }
    return bytes;
  }

  void DecodeTile(const TileBytes& place, absl::string_view bytes, float* out, size_t ld) const {
    for (uint32_t r = 0; r < place.tile.rows; ++r) {
      for (uint32_t c = 0; c < place.tile.cols; ++c) {
        uint32_t code = 0;
        for (uint32_t i = 0; i < format_.bits(); ++i) {
          const size_t bit = place.BitOf(r, c) + i;
          code |= (static_cast<uint8_t>(bytes[bit / 8]) >> bit % 8 & 1u) << i;
        }
        const uint32_t value =
            ValueOf(format_, code, static_cast<uint8_t>(bytes[place.BlockOf(r, c)]));
        std::memcpy(out + r * ld + c, &value, sizeof(value));
      }
    }
  }

  // Calls visit(row, column) for every element of a block.
  template <class Visitor>
  static void ForEachOf(const TileBytes& place, size_t block, Visitor visit) {
    const bool by_row = place.axis == Axis::kRow;
    const uint32_t lines = by_row ? place.BlocksPerLine() : place.tile.cols;
    const uint32_t major = static_cast<uint32_t>(block / lines);
    const uint32_t minor = static_cast<uint32_t>(block % lines);
    const uint32_t end = by_row ? place.tile.cols : place.tile.rows;
    const uint32_t begin = kBlock * (by_row ? minor : major);
    for (uint32_t i = begin; i < begin + kBlock && i < end; ++i) {
      if (by_row) {
        visit(major, i);
      } else {
        visit(i, minor);
      }
    }
  }

  const ElementFormat format_;
};

ReferenceRegistration Registration(const ElementFormat& format) {
  return ReferenceRegistration(
      format.name,
      [format](const std::vector<std::string>&) -> absl::StatusOr<std::unique_ptr<ReferenceCodec>> {
        return std::unique_ptr<ReferenceCodec>(std::make_unique<OcpMxReference>(format));
      });
}

const ReferenceRegistration kRegistrations[] = {
    Registration(kFormats[0]), Registration(kFormats[1]), Registration(kFormats[2]),
    Registration(kFormats[3]), Registration(kFormats[4]), Registration(kFormats[5]),
};

}  // namespace
}  // namespace eps
