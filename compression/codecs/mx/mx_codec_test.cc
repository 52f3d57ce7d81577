// Tests mx9, mx6 and mx4 against values by hand, and their rounding, errors and refusals.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "compression/codec.h"
#include "compression/reference_codec.h"
#include "compression/testing/codec_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

const Codec& Named(absl::string_view name) {
  const auto codec = FindCodec(name);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return **codec;
}

int MagnitudeBits(const Codec& codec) {
  return static_cast<int>(codec.traits().bits_per_element) - 2;
}

std::vector<float> FromBits(const std::vector<uint32_t>& bits) {
  std::vector<float> values;
  for (const uint32_t b : bits) values.push_back(FloatOfBits(b));
  return values;
}

Bytes Encoded(absl::string_view name, const Chunk& chunk, const std::vector<float>& values,
              Axis axis = Axis::kRow) {
  EXPECT_EQ(values.size(), chunk.elements);
  EncodeOptions options;
  options.axis = axis;
  return EncodeChunk(Named(name), chunk, options, values.data());
}

std::string Hex(const Bytes& bytes) { return absl::BytesToHexString(bytes.view()); }

std::string RowHex(absl::string_view name, const std::vector<float>& row) {
  return Hex(Encoded(name, MatrixChunk(1, static_cast<uint32_t>(row.size())), row));
}

std::vector<float> Decoded(absl::string_view name, const Chunk& chunk, const Bytes& bytes,
                           Axis axis = Axis::kRow) {
  const auto opened = Named(name).Open(chunk, axis, bytes, Content::kWeights);
  EXPECT_TRUE(opened.ok()) << opened.status();
  std::vector<float> values(chunk.elements);
  if (opened.ok()) DecodeChunk(**opened, chunk, values.data());
  return values;
}

std::vector<float> RoundTrip(absl::string_view name, const std::vector<float>& row) {
  const Chunk chunk = MatrixChunk(1, static_cast<uint32_t>(row.size()));
  return Decoded(name, chunk, Encoded(name, chunk, row));
}

constexpr const char* kNames[] = {"mx9", "mx6", "mx4"};
const std::string kZeros(64, '0');

// The exact vectors of docs/formats/codecs.md.
TEST(Mx, EncodesTheGoldenVectors) {
  const std::vector<float> row =
      FromBits({0x3f800000, 0xbf400000, 0x3e000000, 0x80000000, 0x3e99999a});
  EXPECT_EQ(RowHex("mx9", row), "7f0640b0108026" + kZeros.substr(0, 22));
  EXPECT_EQ(RowHex("mx9:truncate", row), "7f0640b0108026" + kZeros.substr(0, 22));
  EXPECT_EQ(RowHex("mx6", row), "7f06c80a58" + kZeros.substr(0, 14));
  EXPECT_EQ(RowHex("mx6:truncate", row), "7f06c80a48" + kZeros.substr(0, 14));
  EXPECT_EQ(RowHex("mx4", row), "7f0632180000" + kZeros.substr(0, 4));
  EXPECT_EQ(RowHex("mx4:truncate", row), "7f062a180000" + kZeros.substr(0, 4));
  for (const std::string name : kNames) {
    const std::string codes = kZeros.substr(0, 4 * (MagnitudeBits(Named(name)) + 1));
    EXPECT_EQ(RowHex(name, FromBits({0x3f800000, 0xff800000, 0x00000000})), "ff00" + codes);
    EXPECT_EQ(RowHex(name, FromBits({0x7f800001})), "ff00" + codes);
    EXPECT_EQ(RowHex(name, FromBits({0x00000001, 0x007fffff})), "0000" + codes);
  }
}

TEST(Mx, DecodesByHand) {
  const std::vector<float> expected9 = {1.0f, -0.75f, 0.125f, -0.0f, 38.0f / 128};
  const std::vector<float> expected6 = {1.0f, -0.75f, 0.125f, -0.0f, 5.0f / 16};
  const std::vector<float> expected4 = {1.0f, -1.0f, 0.0f, -0.0f, 0.25f};
  const std::vector<float> row =
      FromBits({0x3f800000, 0xbf400000, 0x3e000000, 0x80000000, 0x3e99999a});
  EXPECT_EQ(RoundTrip("mx9", row), expected9);
  EXPECT_EQ(RoundTrip("mx6", row), expected6);
  EXPECT_EQ(RoundTrip("mx4", row), expected4);
  EXPECT_TRUE(std::signbit(RoundTrip("mx4", row)[3]));
  for (const float v : RoundTrip("mx9", {1.0f, HUGE_VALF, -3.0f})) {
    EXPECT_EQ(BitsOfFloat(v), 0x7fc00000u);
  }
}

TEST(Mx, SaturatesAndNeverRaisesTheScale) {
  for (const std::string name : kNames) {
    const int m = MagnitudeBits(Named(name));
    const float most = std::ldexp(1.0f, 2) - std::ldexp(1.0f, 2 - m);  // (2^m - 1) units for E = 1
    const float just_below = std::nextafter(4.0f, 0.0f);
    const std::vector<float> found = RoundTrip(name, {just_below, -just_below, 2.0f});
    EXPECT_EQ(found, (std::vector<float>{most, -most, 2.0f})) << name;
    const std::string largest = RowHex(name, {std::numeric_limits<float>::max()});
    EXPECT_EQ(largest.substr(0, 4), "fe00") << name;
  }
}

TEST(Mx, RoundsTiesToEvenOrTruncates) {
  for (const std::string name : kNames) {
    const int m = MagnitudeBits(Named(name));
    for (int micro = 0; micro < 2; ++micro) {
      // The largest element is 1; in another pair, units are half as large.
      const float unit = std::ldexp(1.0f, 1 - m - micro);
      for (int k = 0; k + 1 < 1 << m; ++k) {
        const float tie = (static_cast<float>(k) + 0.5f) * unit;
        const float other = micro == 1 ? 0.0f : 1.0f;
        const std::vector<float> row = {1.0f, 1.0f, tie, other, -std::nextafter(tie, 0.0f), other};
        const int even = k % 2 == 0 ? k : k + 1;
        const std::vector<float> nearest = RoundTrip(name, row);
        EXPECT_EQ(nearest[2], static_cast<float>(even) * unit) << name << " " << k;
        EXPECT_EQ(nearest[4], static_cast<float>(-k) * unit) << name << " " << k;
        EXPECT_EQ(RoundTrip(name + ":truncate", row)[2], static_cast<float>(k) * unit);
      }
    }
  }
}

TEST(Mx, FlushesOnlyInputDenormals) {
  for (const std::string name : kNames) {
    // Next to the smallest normal, a denormal would get up to the largest magnitude.
    const std::vector<float> found =
        RoundTrip(name, FromBits({0x00800000, 0x007fffff, 0x807fffff}));
    EXPECT_EQ(BitsOfFloat(found[0]), 0x00800000u);
    EXPECT_EQ(BitsOfFloat(found[1]), 0u);
    EXPECT_EQ(BitsOfFloat(found[2]), 0x80000000u);
    // A scale of 1 with a magnitude of 1 is a denormal, which is decoded.
    const int m = MagnitudeBits(Named(name));
    std::string bytes(2 + 2 * (m + 1), '\0');
    bytes[0] = 1;
    bytes[2] = 1;
    const Chunk chunk = MatrixChunk(1, 1);
    EXPECT_EQ(BitsOfFloat(Decoded(name, chunk, Bytes::CopyOf(bytes))[0]), 1u << (24 - m));
    bytes[0] = 0;
    EXPECT_EQ(BitsOfFloat(Decoded(name, chunk, Bytes::CopyOf(bytes))[0]), 1u << (23 - m));
  }
}

TEST(Mx, PadsTailsOfBothAxesWithNothing) {
  // 3 x 17, all ones except halves in row 2: two blocks per row, or 17 blocks of three rows.
  std::vector<float> values(3 * 17, 1.0f);
  for (int c = 0; c < 17; ++c) values[2 * 17 + c] = 0.5f;
  const Chunk chunk = MatrixChunk(3, 17);
  const std::string by_row = Hex(Encoded("mx9", chunk, values));
  EXPECT_EQ(by_row.substr(0, 12), "7f7f7f7f7e7e");
  EXPECT_EQ(by_row.substr(12, 12), kZeros.substr(0, 12));
  std::string first_row;
  for (int c = 0; c < 17; ++c) first_row += "40";
  EXPECT_EQ(by_row.substr(24, 66), first_row + kZeros.substr(0, 30) + "40");
  const std::string by_column = Hex(Encoded("mx9", chunk, values, Axis::kColumn));
  std::string planes;
  for (int c = 0; c < 17; ++c) planes += "7f";
  for (int c = 0; c < 17; ++c) planes += "02";  // the pair of rows 2 and 3; row 3 is padding
  EXPECT_EQ(by_column.substr(0, 68), planes);
  EXPECT_EQ(by_column.size(), 2u * (17 + 17 + 3 * 32));
  EXPECT_EQ(Decoded("mx9", chunk, Encoded("mx9", chunk, values, Axis::kColumn), Axis::kColumn),
            values);
}

// Returns normal values times powers of two.
std::vector<float> HeavyTailed(size_t n) {
  TestRandom random;
  std::vector<float> values(n);
  for (float& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.Next() / 4294967296.0;
    value = static_cast<float>(std::ldexp(sum, static_cast<int>(random.Next() % 5) - 8));
  }
  return values;
}

TEST(Mx, ErrorsStayWithinHalfAUnit) {
  const Chunk chunk = MatrixChunk(64, 256);
  const std::vector<float> values = HeavyTailed(chunk.elements);
  for (const std::string name :
       {"mx9", "mx9:truncate", "mx6", "mx6:truncate", "mx4", "mx4:truncate"}) {
    const int m = MagnitudeBits(Named(name));
    const double part = name.find(':') == std::string::npos ? 0.5 : 1.0;
    const std::vector<float> found = Decoded(name, chunk, Encoded(name, chunk, values));
    for (size_t i = 0; i < values.size(); i += 2) {
      int e = -127, pair_e = -127, own = 0;
      for (size_t k = i / 16 * 16; k < i / 16 * 16 + 16; ++k) {
        std::frexp(values[k], &own);
        if (values[k] != 0) e = std::max(e, own - 1);
        if (values[k] != 0 && k / 2 == i / 2) pair_e = std::max(pair_e, own - 1);
      }
      const int d = pair_e < e ? 1 : 0;
      const double unit = std::ldexp(1.0, e - d + 1 - m);
      for (size_t k = i; k < i + 2; ++k) {
        const double error = std::abs(double{found[k]} - values[k]);
        const bool saturated = std::abs(found[k]) == unit * ((1 << m) - 1);
        ASSERT_LE(error, unit * (saturated ? 1.0 : part)) << name << " " << k;
      }
    }
  }
}

double QuantizationSnr(const std::string& name, const std::vector<float>& values) {
  const Chunk chunk = MatrixChunk(static_cast<uint32_t>(values.size() / 1024), 1024);
  const std::vector<float> found = Decoded(name, chunk, Encoded(name, chunk, values));
  double power = 0, noise = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    power += double{values[i]} * values[i];
    noise += (double{found[i]} - values[i]) * (double{found[i]} - values[i]);
  }
  return 10 * std::log10(power / noise);
}

TEST(Mx, GivesSixDecibelsPerBit) {
  // The cube of a uniform value: heavy tails.
  TestRandom random;
  std::vector<float> values(256 * 1024);
  for (float& value : values) {
    const float u = static_cast<float>(random.Next() >> 8) * 0x1p-24f - 0.5f;
    value = 0.3f * u * u * u;
  }
  EXPECT_NEAR(QuantizationSnr("mx9", values), 45.7, 1.0);
  EXPECT_NEAR(QuantizationSnr("mx6", values), 27.7, 1.0);
  EXPECT_NEAR(QuantizationSnr("mx4", values), 15.7, 1.0);
  for (const std::string name : kNames) {
    EXPECT_LT(QuantizationSnr(name + ":truncate", values), QuantizationSnr(name, values) - 3);
  }
}

TEST(Mx, HasTheDocumentedTraits) {
  for (const std::string name : kNames) {
    for (const std::string& full : {name, name + ":truncate"}) {
      EXPECT_EQ(Named(full).name(), full);
      EXPECT_EQ(Named(full).traits().block, 16u);
      EXPECT_EQ(Named(full).traits().bits_per_element, name.back() - '0');
      EXPECT_FALSE(Named(full).traits().exact);
    }
    EXPECT_THAT(std::string(FindCodec(name + ":round").status().message()),
                HasSubstr("its only parameter is \"truncate\""));
    EXPECT_FALSE(FindCodec(name + ":truncate:truncate").ok());
    EXPECT_FALSE(NewReferenceCodec(name + ":round").ok());
  }
  EXPECT_EQ(Named("mx9").traits().id, CodecId{8});
  EXPECT_EQ(Named("mx6").traits().id, CodecId{9});
  EXPECT_EQ(Named("mx4").traits().id, CodecId{10});
}

// The first element in the order of the chunk, not of its tiles: row 3 of the second tile precedes
// row 4 of the first.
TEST(Mx, LocatesTheFirstInadmissibleElement) {
  for (const std::string name : kNames) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      Chunk chunk = MatrixChunk(64, 200);
      chunk.id = ChunkId(7);
      std::vector<float> values(chunk.elements, 1.0f);
      values[20 * 200 + 10] = -2 * kMaxGradient;
      values[3 * 200 + 150] = kMaxGradient;
      values[40 * 200] = kMaxGradient;
      const Bytes bytes = Encoded(name, chunk, values, axis);
      const auto refused = Named(name).Open(chunk, axis, bytes, Content::kGradient).status();
      EXPECT_EQ(InadmissibleElement(refused), uint64_t{3 * 200 + 150}) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("row 3, column 150 is 1.1259e+15"));
      EXPECT_TRUE(Named(name).Open(chunk, axis, bytes, Content::kWeights).ok());

      values.assign(chunk.elements, std::nextafter(kMaxGradient, 0.0f));
      EXPECT_TRUE(Named(name)
                      .Open(chunk, axis, Encoded(name, chunk, values, axis), Content::kGradient)
                      .ok());
    }
    // A large scale alone is admissible.
    std::string bytes(2 + 2 * (MagnitudeBits(Named(name)) + 1), '\0');
    bytes[0] = static_cast<char>(180);
    const Chunk one = MatrixChunk(1, 1);
    EXPECT_TRUE(Named(name).Open(one, Axis::kRow, Bytes::CopyOf(bytes), Content::kGradient).ok());
    bytes[0] = static_cast<char>(255);
    EXPECT_EQ(
        InadmissibleElement(
            Named(name).Open(one, Axis::kRow, Bytes::CopyOf(bytes), Content::kGradient).status()),
        uint64_t{0});
  }
}

}  // namespace
}  // namespace eps
