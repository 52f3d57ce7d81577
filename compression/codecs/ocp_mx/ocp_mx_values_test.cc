// Compares every code and every rounding with the values that docs/formats/codecs.md lists: with
// tables built here from fields and biases, and a search for the nearest value. EPS_SHORT=1 in the
// environment takes a sample of the scales and of the values between borders.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/numerics/flush_denormals.h"
#include "compression/codecs/ocp_mx/kernels.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ocp_mx_kernels::Element;
using ocp_mx_kernels::TileShape;

constexpr double kInfinity = HUGE_VAL;

struct Format {
  const char* name;
  Element element;
  int exponent_bits, mantissa_bits, bias;
  double largest;
  int emax;

  bool is_integer() const { return element == Element::kInt8; }
  int bits() const { return is_integer() ? 8 : 1 + exponent_bits + mantissa_bits; }
  int magnitudes() const { return 1 << (bits() - 1); }
};

const std::vector<Format>& Formats() {
  static const auto* const formats = new std::vector<Format>{
      {"mxfp8_e4m3", Element::kE4m3, 4, 3, 7, 448, 8},
      {"mxfp8_e5m2", Element::kE5m2, 5, 2, 15, 57344, 15},
      {"mxfp6_e2m3", Element::kE2m3, 2, 3, 1, 7.5, 2},
      {"mxfp6_e3m2", Element::kE3m2, 3, 2, 3, 28, 4},
      {"mxfp4_e2m1", Element::kE2m1, 2, 1, 1, 6, 2},
      {"mxint8", Element::kInt8, 0, 0, 0, 127.0 / 64, 0},
  };
  return *formats;
}

// Returns the magnitude of a code without its sign, which may be NaN or infinity.
double MagnitudeOf(const Format& f, int code) {
  if (f.is_integer()) return code / 64.0;
  const int exponent = code >> f.mantissa_bits;
  const int mantissa = code & ((1 << f.mantissa_bits) - 1);
  if (f.element == Element::kE4m3 && code == 0x7f) return std::nan("");
  if (f.element == Element::kE5m2 && exponent == 31)
    return mantissa == 0 ? kInfinity : std::nan("");
  const double fraction = std::ldexp(mantissa, -f.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - f.bias)
                       : std::ldexp(1 + fraction, exponent - f.bias);
}

// Packs the codes of one row, one byte each, in groups of 16 codes of `bits` bits.
std::vector<uint8_t> Packed(const std::vector<uint8_t>& codes, int bits) {
  std::vector<uint8_t> out((codes.size() + 15) / 16 * 2 * bits, 0);
  for (size_t i = 0; i < codes.size(); ++i) {
    for (int b = 0; b < bits; ++b) {
      const size_t at = i * bits + b;  // groups are contiguous
      out[at / 8] = static_cast<uint8_t>(out[at / 8] | (codes[i] >> b & 1) << at % 8);
    }
  }
  return out;
}

// Returns the bits of a float from an exact double, computed by hand, because FP32 denormals may be
// disabled.
uint32_t BitsOfDouble(double value) {
  uint32_t sign = std::signbit(value) ? 0x80000000u : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7fc00000u;
  if (magnitude >= std::ldexp(1, 128)) return sign | 0x7f800000u;
  if (magnitude < std::ldexp(1, -126))
    return sign | static_cast<uint32_t>(std::ldexp(magnitude, 149));
  const int exponent = std::ilogb(magnitude);
  // The implicit bit of the significand supplies the missing unit of the exponent.
  const uint32_t significand = static_cast<uint32_t>(std::ldexp(magnitude, 23 - exponent));
  return sign | ((static_cast<uint32_t>(exponent + 126) << 23) + significand);
}

double DoubleOfBits(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 23 & 255);
  const double fraction = bits & 0x7fffffu;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -149) : std::ldexp(fraction + 0x800000, exponent - 150);
  return bits >> 31 != 0 ? -magnitude : magnitude;
}

bool IsShort() { return std::getenv("EPS_SHORT") != nullptr; }

// Runs `body` for each instruction set, with denormals kept and flushed.
template <class Body>
void InEveryMode(Body body) {
  OnEveryTarget([&] {
    {
      SCOPED_TRACE("with denormals");
      body();
    }
    SCOPED_TRACE("denormals flushed");
    ScopedFlushDenormals flush;
    body();
  });
}

// Returns the signed value of an element's code.
double ValueOf(const Format& f, int code) {
  if (f.is_integer()) return (code < 128 ? code : code - 256) / 64.0;
  const double magnitude = MagnitudeOf(f, code & (f.magnitudes() - 1));
  return (code & f.magnitudes()) != 0 ? -magnitude : magnitude;
}

TEST(Elements, HaveTheListedValues) {
  std::vector<double> e2m1;
  for (int code = 0; code < 16; ++code) e2m1.push_back(ValueOf(Formats()[4], code));
  EXPECT_EQ(e2m1, (std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4,
                                       -6}));
  for (const Format& f : Formats()) {
    double largest = 0;
    for (int code = 0; code < f.magnitudes(); ++code) {
      const double value = MagnitudeOf(f, code);
      if (std::isfinite(value)) largest = std::max(largest, value);
    }
    EXPECT_EQ(largest, f.largest) << f.name;
    EXPECT_EQ(std::ilogb(largest), f.emax) << f.name;
  }
  EXPECT_EQ(MagnitudeOf(Formats()[0], 1), std::ldexp(1, -9));
  EXPECT_EQ(MagnitudeOf(Formats()[1], 1), std::ldexp(1, -16));
  EXPECT_EQ(MagnitudeOf(Formats()[2], 1), 0.125);
  EXPECT_EQ(MagnitudeOf(Formats()[3], 1), 0.0625);
}

// Returns all scales; in a short run, those at which a format's values become denormal, infinite or
// NaN, and every 16th.
std::vector<int> Scales() {
  std::vector<int> scales;
  for (int scale = 0; scale < 256; ++scale) {
    if (!IsShort() || scale < 32 || scale > 236 || scale % 16 == 15) scales.push_back(scale);
  }
  return scales;
}

// All codes at all scales, in row blocks and in column blocks.
TEST(Kernels, DecodeEveryCodeAtEveryScale) {
  for (const Format& f : Formats()) {
    SCOPED_TRACE(f.name);
    const size_t codes_count = size_t{1} << f.bits();
    InEveryMode([&] {
      for (const int scale : Scales()) {
        for (size_t first = 0; first < codes_count; first += 32) {
          const size_t n = std::min<size_t>(32, codes_count - first);
          std::vector<uint8_t> codes;
          for (size_t i = 0; i < n; ++i) codes.push_back(static_cast<uint8_t>(first + i));
          const std::vector<uint8_t> packed = Packed(codes, f.bits());
          const std::vector<uint8_t> scales(n, static_cast<uint8_t>(scale));
          for (const bool column_blocks : {false, true}) {
            float out[32];
            ocp_mx_kernels::Decode(f.element, TileShape{1, n, column_blocks}, scales.data(),
                                   packed.data(), n, out);
            for (size_t i = 0; i < n; ++i) {
              const double value = std::ldexp(ValueOf(f, codes[i]), scale - 127);
              const uint32_t expected = scale == 255 ? 0x7fc00000u : BitsOfDouble(value);
              uint32_t found;
              std::memcpy(&found, out + i, 4);
              ASSERT_EQ(found, expected) << std::hex << int{codes[i]} << " scale " << scale;
            }
          }
        }
      }
    });
  }
}

// Returns the code of the nearest value, ties to the even code.
int NearestCode(const Format& f, const std::vector<double>& table, double x) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(table.size()); ++code) {
    const double distance = std::fabs(table[code] - std::fabs(x));
    const double least = std::fabs(table[best] - std::fabs(x));
    if (distance > least) break;
    if (distance < least || code % 2 == 0) best = code;
  }
  if (!std::signbit(x)) return best;
  return f.is_integer() ? -best & 255 : best | f.magnitudes();
}

struct Expected {
  uint8_t scale;
  std::vector<uint8_t> codes;
};

Expected EncodeBlock(const Format& f, const std::vector<double>& table,
                     const std::vector<uint32_t>& block) {
  Expected expected;
  double largest = 0;
  for (const uint32_t bits : block) {
    if ((bits & 0x7f800000u) == 0x7f800000u) {
      expected.scale = 255;
      expected.codes.assign(block.size(), 0);
      return expected;
    }
    largest = std::max(largest, std::fabs(DoubleOfBits(bits)));
  }
  const int shared = largest == 0 ? -127 : std::max(std::ilogb(largest) - f.emax, -127);
  expected.scale = static_cast<uint8_t>(shared + 127);
  for (const uint32_t bits : block) {
    const double x =
        std::ldexp(std::copysign(DoubleOfBits(bits), bits >> 31 != 0 ? -1.0 : 1.0), -shared);
    expected.codes.push_back(static_cast<uint8_t>(NearestCode(f, table, x)));
  }
  return expected;
}

std::vector<double> TableOf(const Format& f) {
  std::vector<double> table;
  for (int code = 0; code < f.magnitudes(); ++code) {
    const double value = MagnitudeOf(f, code);
    if (std::isfinite(value)) table.push_back(value);
  }
  return table;
}

// Encodes blocks as rows and as columns of tiles, and checks the results.
void CheckBlocks(const Format& f, const std::vector<std::vector<uint32_t>>& blocks) {
  const std::vector<double> table = TableOf(f);
  std::vector<Expected> expected;
  for (const auto& block : blocks) expected.push_back(EncodeBlock(f, table, block));
  InEveryMode([&] {
    for (size_t b = 0; b < blocks.size(); ++b) {
      // Each block as one row block.
      float row[32];
      std::memcpy(row, blocks[b].data(), sizeof(row));
      uint8_t scale = 0;
      std::vector<uint8_t> codes(4 * f.bits());
      ocp_mx_kernels::Encode(f.element, TileShape{1, 32, false}, row, 32, &scale, codes.data());
      ASSERT_EQ(scale, expected[b].scale) << "block " << b;
      ASSERT_EQ(codes, Packed(expected[b].codes, f.bits())) << "block " << b;
    }
    for (size_t b = 0; b + 16 <= blocks.size(); b += 16) {
      // Sixteen adjacent blocks as columns.
      float tile[32 * 16];
      for (size_t r = 0; r < 32; ++r) {
        for (size_t c = 0; c < 16; ++c) std::memcpy(tile + r * 16 + c, &blocks[b + c][r], 4);
      }
      uint8_t scales[16];
      std::vector<uint8_t> codes(32 * 2 * f.bits());
      ocp_mx_kernels::Encode(f.element, TileShape{32, 16, true}, tile, 16, scales, codes.data());
      for (size_t c = 0; c < 16; ++c) ASSERT_EQ(scales[c], expected[b + c].scale) << b + c;
      for (size_t r = 0; r < 32; ++r) {
        std::vector<uint8_t> line;
        for (size_t c = 0; c < 16; ++c) line.push_back(expected[b + c].codes[r]);
        const auto at = codes.begin() + r * 2 * f.bits();
        ASSERT_EQ(std::vector<uint8_t>(at, at + 2 * f.bits()), Packed(line, f.bits())) << b;
      }
    }
  });
}

// Each bf16 in a block whose largest element is `above` binades above it: every binade of the
// format, its denormals, and values that round to zero.
TEST(Kernels, RoundEveryBf16ToNearest) {
  for (const Format& f : Formats()) {
    SCOPED_TRACE(f.name);
    const int span = f.is_integer() ? 8 : f.emax + f.bias + f.mantissa_bits + 1;
    for (int above = 0; above <= span; ++above) {
      std::vector<std::vector<uint32_t>> blocks;
      // Cover all binades for a few distances; for the others the mantissas of some binades
      // suffice.
      const bool all = above == 0 || above == span / 2;
      const uint32_t stride = all && IsShort() ? 31 * 5 : 31;
      for (uint32_t upper = all ? 0 : 0x2000; upper < (all ? 0x10000u : 0x2400u); upper += stride) {
        std::vector<uint32_t> block;
        for (uint32_t i = 0; i < 31; ++i) block.push_back(((upper + i) & 0xffffu) << 16);
        const uint32_t exponent = (upper >> 7 & 255) + above;
        block.push_back((exponent < 255 ? exponent : 254) << 23);
        blocks.push_back(block);
      }
      CheckBlocks(f, blocks);
    }
  }
}

// Values just below, at and just above the midpoint of two neighbours, everywhere in the format.
TEST(Kernels, RoundTiesToEvenAndNeighboursAway) {
  for (const Format& f : Formats()) {
    SCOPED_TRACE(f.name);
    const std::vector<double> table = TableOf(f);
    for (const int scale : {127, 0, 1, 17, 40, 60, 200, 254 - f.emax}) {
      std::vector<uint32_t> xs;
      for (size_t code = 0; code + 1 < table.size(); ++code) {
        const double middle = std::ldexp((table[code] + table[code + 1]) / 2, scale - 127);
        if (std::ldexp(middle, 149) != std::floor(std::ldexp(middle, 149))) continue;
        const uint32_t bits = BitsOfDouble(middle);
        for (const uint32_t x : {bits - 1, bits, bits + 1}) {
          xs.push_back(x);
          xs.push_back(x | 0x80000000u);
        }
      }
      std::vector<std::vector<uint32_t>> blocks;
      for (size_t i = 0; i < xs.size(); i += 31) {
        std::vector<uint32_t> block(xs.begin() + i, xs.begin() + std::min(xs.size(), i + 31));
        block.resize(31, 0);
        block.push_back(BitsOfDouble(std::ldexp(f.largest, scale - 127)));  // sets the scale
        blocks.push_back(block);
      }
      CheckBlocks(f, blocks);
    }
  }
}

// Blocks of FP32 denormals only, of zeros, and with infinities and NaN, at both ends of the scales.
TEST(Kernels, EncodeExtremeBlocks) {
  TestRandom random;
  std::vector<std::vector<uint32_t>> blocks;
  for (int kind = 0; kind < 16; ++kind) {
    for (int round = 0; round < 32; ++round) {
      std::vector<uint32_t> block;
      for (int i = 0; i < 32; ++i) {
        const uint32_t bits = random.Next();
        const uint32_t sign = bits & 0x80000000u;
        switch (kind) {
          case 0:
            block.push_back(sign);
            break;
          case 1:
            block.push_back(sign | (bits & 0x7fffffu));
            break;
          case 2:
            block.push_back(sign | (bits & 0x7fffffu) >> (bits >> 24) % 24);
            break;
          case 3:
            block.push_back(SpecialBits()[bits % SpecialBits().size()]);
            break;
          case 4:
            block.push_back(bits);
            break;
          case 5:
            block.push_back(i == round ? 0x7f800000u | sign : bits & 0xbfffffffu);
            break;
          case 6:
            block.push_back(i == round ? 0x7f800001u | bits : bits & 0xbfffffffu);
            break;
          case 7:
            block.push_back(sign | 0x7f000000u | (bits & 0x7fffffu));
            break;
          case 8:
            block.push_back(sign | (bits & 0x0fffffffu));
            break;
          case 9:
            block.push_back(sign | 0x70000000u | (bits & 0x0effffffu));
            break;
          default:  // around binade number 5 * (kind - 9) + round
            block.push_back(sign | (5u * (kind - 9) + round + bits % 3) << 23 | (bits & 0x7fffffu));
        }
      }
      blocks.push_back(block);
    }
  }
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    std::vector<uint32_t> block(32, 1);
    block[exponent % 32] = exponent << 23;
    block[(exponent + 7) % 32] = exponent << 23 | 0x7fffff;
    block[(exponent + 9) % 32] = exponent << 22;
    blocks.push_back(block);
  }
  for (const Format& f : Formats()) {
    SCOPED_TRACE(f.name);
    CheckBlocks(f, blocks);
  }
}

}  // namespace
}  // namespace eps
