// The OCP codecs byte by byte, and the messages of their refusals.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "compression/testing/codec_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

const Codec& Named(absl::string_view name) {
  absl::StatusOr<const Codec*> codec = FindCodec(name);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return **codec;
}

std::string Hex(absl::string_view bytes) {
  std::string out;
  for (const char byte : bytes) {
    const char* digits = "0123456789abcdef";
    out += digits[static_cast<uint8_t>(byte) >> 4];
    out += digits[static_cast<uint8_t>(byte) & 15];
  }
  return out;
}

std::vector<float> FromBits(const std::vector<uint32_t>& bits) {
  std::vector<float> values(bits.size());
  std::memcpy(values.data(), bits.data(), 4 * bits.size());
  return values;
}

std::string EncodedHex(absl::string_view name, Axis axis, const std::vector<uint32_t>& bits) {
  const uint32_t n = static_cast<uint32_t>(bits.size());
  const Chunk chunk = axis == Axis::kRow ? MatrixChunk(1, n) : MatrixChunk(n, 1);
  EncodeOptions options;
  options.axis = axis;
  return Hex(EncodeChunk(Named(name), chunk, options, FromBits(bits).data()).view());
}

// The exact vectors of docs/formats/codecs.md.
TEST(OcpMx, EncodesTheGoldenVectors) {
  const std::vector<uint32_t> bits = {0x3f800000, 0xc0490fdb, 0x80000000, 0x3ea00000, 0x40a80000,
                                      0x40f80000, 0x3d800000, 0xbdc00000, 0x00000001, 0xc0300000};
  const std::vector<std::pair<std::string, std::string>> golden = {
      {"mxfp8_e4m3",
       "79"
       "68f5805a7a7e48cc00f3"
       "000000000000"},
      {"mxfp8_e5m2",
       "72"
       "70f68069797b60e200f6"
       "000000000000"},
      {"mxfp6_e2m3",
       "7f"
       "480d0ada0784c00c00000000"},
      {"mxfp6_e3m2",
       "7d"
       "940e36dd4798800e00000000"},
      {"mxfp4_e2m1",
       "7f"
       "d2187780d0000000"},
      {"mxint8",
       "81"
       "10ce0005547c01fe00d4"
       "000000000000"},
  };
  for (const auto& [name, bytes] : golden) {
    EXPECT_EQ(EncodedHex(name, Axis::kRow, bits), bytes) << name;
  }
}

TEST(OcpMx, StoresColumnBlocksRowByRow) {
  // A column of two: one block, and one group of sixteen codes per row.
  EXPECT_EQ(EncodedHex("mxfp4_e2m1", Axis::kColumn, {0x40c00000, 0xbf800000}),
            "7f"
            "0700000000000000"
            "0a00000000000000");
  EXPECT_EQ(EncodedHex("mxint8", Axis::kColumn, {0x3f800000, 0xbf000000}),
            "7f"
            "40000000000000000000000000000000"
            "e0000000000000000000000000000000");
}

TEST(OcpMx, LowestScaleClampsAndHighestIsNan) {
  for (const std::string name :
       {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4_e2m1", "mxint8"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(EncodedHex(name, Axis::kRow, {0, 0}).substr(0, 4), "0000");
    EXPECT_EQ(EncodedHex(name, Axis::kRow, {1, 0}).substr(0, 2), "00");
    EXPECT_EQ(EncodedHex(name, Axis::kRow, {0x007fffff}).substr(0, 2), "00");
    const std::string nan = EncodedHex(name, Axis::kRow, {0x3f800000, 0x7f800000});
    EXPECT_EQ(nan.substr(0, 2), "ff");
    EXPECT_EQ(nan.find_first_not_of('0', 2), std::string::npos);
  }
  EXPECT_EQ(EncodedHex("mxint8", Axis::kRow, {0x7f7fffff}).substr(0, 4), "fe7f");
  EXPECT_EQ(EncodedHex("mxfp8_e4m3", Axis::kRow, {0xff7fffff}).substr(0, 4), "f6fe");
  EXPECT_EQ(EncodedHex("mxfp8_e4m3", Axis::kRow, {0x80000000}).substr(0, 4), "0080");
  // 2^-127 is an FP32 denormal and a scale; the elements are 1, 0.5 and 2^-6 times it.
  EXPECT_EQ(EncodedHex("mxint8", Axis::kRow, {0x00400000, 0x00200000, 0x00010000}).substr(0, 8),
            "00402001");
}

std::shared_ptr<const EncodedChunk> Opened(const Codec& codec, const Chunk& chunk,
                                           const std::string& bytes, absl::Status* status) {
  auto opened = codec.Open(chunk, Axis::kRow, Bytes::CopyOf(bytes), Content::kGradient);
  *status = opened.status();
  return opened.ok() ? *opened : nullptr;
}

// Opens a block of zeros with one code, at one scale, as a gradient.
absl::Status OpenOne(absl::string_view name, int scale, int code) {
  const Chunk chunk = MatrixChunk(1, 32);
  std::string bytes(Named(name).MaxEncodedSize(chunk, Axis::kRow), '\0');
  bytes[0] = static_cast<char>(scale);
  bytes[1] = static_cast<char>(code);
  absl::Status status;
  Opened(Named(name), chunk, bytes, &status);
  return status;
}

TEST(OcpMx, AdmitsGradientsUpToTheLimit) {
  // The largest element of binade 2^7 at scale 2^42, and the smallest of binade 2^8.
  EXPECT_TRUE(OpenOne("mxfp8_e4m3", 127 + 42, 0x77).ok());
  EXPECT_FALSE(OpenOne("mxfp8_e4m3", 127 + 42, 0x78).ok());
  EXPECT_TRUE(OpenOne("mxfp8_e4m3", 127 + 41, 0x7e).ok());
  EXPECT_TRUE(OpenOne("mxfp8_e5m2", 127 + 34, 0xfb).ok());
  EXPECT_FALSE(OpenOne("mxfp8_e5m2", 127 + 35, 0xfb).ok());
  EXPECT_FALSE(OpenOne("mxfp6_e2m3", 127 + 48, 0x1f).ok());
  EXPECT_TRUE(OpenOne("mxfp6_e2m3", 127 + 47, 0x1f).ok());
  EXPECT_FALSE(OpenOne("mxfp6_e3m2", 127 + 46, 0x1f).ok());
  EXPECT_TRUE(OpenOne("mxfp6_e3m2", 127 + 45, 0x1f).ok());
  EXPECT_FALSE(OpenOne("mxfp4_e2m1", 127 + 48, 0x07).ok());
  EXPECT_TRUE(OpenOne("mxfp4_e2m1", 127 + 47, 0x07).ok());
  EXPECT_TRUE(OpenOne("mxint8", 127 + 49, 0x7f).ok());
  EXPECT_FALSE(OpenOne("mxint8", 127 + 49, 0x80).ok());  // -2
  EXPECT_TRUE(OpenOne("mxint8", 127 + 48, 0x80).ok());
  for (const std::string name :
       {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4_e2m1", "mxint8"}) {
    EXPECT_TRUE(OpenOne(name, 254, 0).ok()) << name;  // zeros stay zeros
    EXPECT_FALSE(OpenOne(name, 254, 1).ok()) << name;
    EXPECT_FALSE(OpenOne(name, 255, 0).ok()) << name;
  }
}

TEST(OcpMx, FindsNanAndInfinityAtHarmlessScales) {
  for (const int scale : {0, 1, 100, 127, 160}) {
    for (const int sign : {0, 0x80}) {
      EXPECT_FALSE(OpenOne("mxfp8_e4m3", scale, sign | 0x7f).ok());
      EXPECT_TRUE(OpenOne("mxfp8_e4m3", scale, sign | 0x7e).ok());
      for (const int code : {0x7c, 0x7d, 0x7e, 0x7f}) {
        EXPECT_FALSE(OpenOne("mxfp8_e5m2", scale, sign | code).ok());
      }
      EXPECT_TRUE(OpenOne("mxfp8_e5m2", scale, sign | 0x7b).ok());
    }
  }
  EXPECT_TRUE(OpenOne("mxint8", 127, 0x7f).ok());
}

// A tile is not contiguous in the chunk: the first element in chunk order may be in a later tile.
TEST(OcpMx, LocatesTheFirstInadmissibleElement) {
  Chunk chunk = MatrixChunk(40, 300);
  chunk.segments[0].tensor = TensorId(4);
  chunk.segments[0].row = 64;
  std::vector<float> values(chunk.elements, 1.0f);
  values[9 * 300 + 5] = HUGE_VALF;     // tile 0
  values[8 * 300 + 270] = -HUGE_VALF;  // tile 2, a row above: its block starts at column 256
  values[35 * 300 + 1] = std::nanf("");
  const Bytes bytes = EncodeChunk(Named("mxfp8_e4m3"), chunk, EncodeOptions(), values.data());
  absl::Status status;
  Opened(Named("mxfp8_e4m3"), chunk, std::string(bytes.view()), &status);
  EXPECT_EQ(InadmissibleElement(status).value_or(0), 8u * 300 + 256);
  EXPECT_THAT(std::string(status.message()), HasSubstr("row 72, column 256 is nan"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("mxfp8_e4m3"));
}

TEST(OcpMx, RefusesOtherLengthsAndNamesBoth) {
  const Chunk chunk = MatrixChunk(1, 5);
  absl::Status status;
  Opened(Named("mxfp6_e3m2"), chunk, std::string(12, '\0'), &status);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 13 bytes, found 12"));
  EXPECT_EQ(FindCodec("mxint8:7").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eps
