// mx9, mx6 and mx4 in plain integers, element by element, from docs/formats/codecs.md.

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "base/check.h"
#include "compression/reference_codec.h"

namespace eps {
namespace {

constexpr uint32_t kBlock = 16;
constexpr uint32_t kNaNScale = 255;
constexpr uint32_t kNaNBits = 0x7fc00000;

// One encoded block, unpacked.
struct Block {
  uint32_t scale = 0;
  uint32_t micro = 0;
  uint32_t codes[kBlock] = {};
};

// The blocks of one tile: the position of each element of each block.
class TileBlocks {
 public:
  TileBlocks(const Tile& tile, Axis axis) : tile_(tile), by_row_(axis == Axis::kRow) {
    across_ = by_row_ ? (tile.cols + kBlock - 1) / kBlock : tile.cols;
    down_ = by_row_ ? tile.rows : (tile.rows + kBlock - 1) / kBlock;
  }
  uint32_t count() const { return across_ * down_; }
  // Return the row and the column of a block's element in the tile; it may be past the tile's edge.
  uint32_t Row(uint32_t block, uint32_t i) const {
    return by_row_ ? block / across_ : block / across_ * kBlock + i;
  }
  uint32_t Col(uint32_t block, uint32_t i) const {
    return by_row_ ? block % across_ * kBlock + i : block % across_;
  }
  bool Present(uint32_t block, uint32_t i) const {
    return Row(block, i) < tile_.rows && Col(block, i) < tile_.cols;
  }

 private:
  const Tile tile_;
  const bool by_row_;
  uint32_t across_ = 0;
  uint32_t down_ = 0;
};

uint32_t BiasedExponent(uint32_t bits) { return bits >> 23 & 255; }

// Returns a 24-bit significand divided by 2^shift, rounded.
uint32_t Round(uint64_t significand, uint32_t shift, bool truncate) {
  if (shift > 30) return 0;  // less than half a unit in the last place
  const uint64_t rest = significand & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  uint64_t rounded = significand >> shift;
  if (!truncate && (rest > half || (rest == half && rounded % 2 == 1))) ++rounded;
  return static_cast<uint32_t>(rounded);
}

// `bits` are the block's elements, with zeros as padding; `present` says which elements are not
// padding.
Block EncodeBlock(const uint32_t (&bits)[kBlock], const bool (&present)[kBlock], uint32_t m,
                  bool truncate) {
  Block block;
  uint32_t exponents[kBlock];
  for (uint32_t i = 0; i < kBlock; ++i) {
    exponents[i] = BiasedExponent(bits[i]);
    block.scale = std::max(block.scale, exponents[i]);
  }
  if (block.scale == kNaNScale) return block;
  for (uint32_t i = 0; i < kBlock; i += 2) {
    const bool below = exponents[i] < block.scale && exponents[i + 1] < block.scale;
    if (below && (present[i] || present[i + 1])) block.micro |= 1u << (i / 2);
  }
  for (uint32_t i = 0; i < kBlock; ++i) {
    uint32_t magnitude = 0;
    if (exponents[i] > 0) {  // denormals are zero
      const uint32_t micro = block.micro >> (i / 2) & 1;
      // x = significand * 2^(e - 127 - 23); the unit of M is 2^(E - 127 - D + 1 - m).
      const uint32_t shift = block.scale - micro + 1 - m + 23 - exponents[i];
      magnitude = Round((bits[i] & 0x7fffff) | 0x800000, shift, truncate);
      magnitude = std::min(magnitude, (1u << m) - 1);
    }
    block.codes[i] = magnitude | bits[i] >> 31 << m;
  }
  return block;
}

// Returns the bits of sign * magnitude * 2^exponent. REQUIRES a product that is a binary32.
uint32_t Product(uint32_t sign, uint32_t magnitude, int exponent) {
  if (magnitude == 0) return sign << 31;
  int top = 0;
  while (magnitude >> top > 1) ++top;
  const int biased = exponent + top + 127;
  if (biased < 1) return sign << 31 | magnitude << (exponent + 149);
  return sign << 31 | static_cast<uint32_t>(biased) << 23 | (magnitude << (23 - top) & 0x7fffff);
}

uint32_t DecodeElement(const Block& block, uint32_t i, uint32_t m) {
  if (block.scale == kNaNScale) return kNaNBits;
  const int micro = block.micro >> (i / 2) & 1;
  return Product(block.codes[i] >> m, block.codes[i] & ((1u << m) - 1),
                 static_cast<int>(block.scale) - 127 - micro + 1 - static_cast<int>(m));
}

// The reference of one format with m magnitude bits.
class MxReference final : public ReferenceCodec {
 public:
  MxReference(uint32_t m, bool truncate) : m_(m), truncate_(truncate) {}

  std::string Encode(const Chunk& chunk, Axis axis, const float* elements,
                     float* /*residual_or_null*/) const override {
    std::string out;
    ForEachTile(chunk, [&](const Tile& tile) {
      const Segment& segment = chunk.segments[tile.segment];
      const TileBlocks blocks(tile, axis);
      std::string micro;
      std::vector<uint32_t> codes(tile.rows * RowCodes(tile));
      for (uint32_t b = 0; b < blocks.count(); ++b) {
        uint32_t bits[kBlock] = {};
        bool present[kBlock] = {};
        for (uint32_t i = 0; i < kBlock; ++i) {
          present[i] = blocks.Present(b, i);
          if (!present[i]) continue;
          const uint64_t at = uint64_t{blocks.Row(b, i)} * segment.cols + blocks.Col(b, i);
          std::memcpy(&bits[i], elements + tile.offset(segment) + at, 4);
        }
        const Block block = EncodeBlock(bits, present, m_, truncate_);
        out.push_back(static_cast<char>(block.scale));
        micro.push_back(static_cast<char>(block.micro));
        for (uint32_t i = 0; i < kBlock; ++i) {
          if (!present[i]) continue;
          codes[blocks.Row(b, i) * RowCodes(tile) + blocks.Col(b, i)] = block.codes[i];
        }
      }
      out += micro + Packed(codes);
    });
    return out;
  }

  void Decode(const Chunk& chunk, Axis axis, absl::string_view bytes,
              float* elements) const override {
    ForEachTile(chunk, [&](const Tile& tile) {
      const Segment& segment = chunk.segments[tile.segment];
      const TileBlocks blocks(tile, axis);
      const absl::string_view scales = bytes.substr(0, blocks.count());
      const absl::string_view micro = bytes.substr(blocks.count(), blocks.count());
      bytes.remove_prefix(2 * blocks.count());
      for (uint32_t b = 0; b < blocks.count(); ++b) {
        Block block;
        block.scale = static_cast<uint8_t>(scales[b]);
        block.micro = static_cast<uint8_t>(micro[b]);
        for (uint32_t i = 0; i < kBlock; ++i) {
          if (!blocks.Present(b, i)) continue;
          const uint32_t row = blocks.Row(b, i);
          const uint32_t col = blocks.Col(b, i);
          block.codes[i] = Code(bytes, row * RowCodes(tile) + col);
          const uint32_t bits = DecodeElement(block, i, m_);
          std::memcpy(elements + tile.offset(segment) + uint64_t{row} * segment.cols + col, &bits,
                      4);
        }
      }
      bytes.remove_prefix(tile.rows * RowCodes(tile) * (m_ + 1) / 8);
    });
    EPS_CHECK(bytes.empty());
  }

 private:
  // Returns the number of codes in a row of the tile, padding included.
  static uint32_t RowCodes(const Tile& tile) { return (tile.cols + 15) / 16 * 16; }

  // Groups of 16 codes are whole bytes, so code i has the bits from i * width on.
  std::string Packed(const std::vector<uint32_t>& codes) const {
    const size_t width = m_ + 1;
    std::string out(codes.size() * width / 8, '\0');
    for (size_t i = 0; i < codes.size() * width; ++i) {
      const uint32_t bit = codes[i / width] >> i % width & 1;
      out[i / 8] = static_cast<char>(static_cast<uint8_t>(out[i / 8]) | bit << i % 8);
    }
    return out;
  }
  uint32_t Code(absl::string_view packed, size_t number) const {
    uint32_t code = 0;
    for (uint32_t k = 0; k <= m_; ++k) {
      const size_t i = number * (m_ + 1) + k;
      code |= (static_cast<uint8_t>(packed[i / 8]) >> i % 8 & 1u) << k;
    }
    return code;
  }

  const uint32_t m_;
  const bool truncate_;
};

ReferenceRegistration Register(const char* name, uint32_t m) {
  return ReferenceRegistration(
      name,
      [m](const std::vector<std::string>& parameters)
          -> absl::StatusOr<std::unique_ptr<ReferenceCodec>> {
        const bool truncate = parameters == std::vector<std::string>{"truncate"};
        if (!truncate && !parameters.empty()) {
          return absl::InvalidArgumentError("its only parameter is \"truncate\"");
        }
        std::unique_ptr<ReferenceCodec> codec = std::make_unique<MxReference>(m, truncate);
        return codec;
      });
}

const ReferenceRegistration kMx9 = Register("mx9", 7);
const ReferenceRegistration kMx6 = Register("mx6", 4);
const ReferenceRegistration kMx4 = Register("mx4", 2);

}  // namespace
}  // namespace eps
