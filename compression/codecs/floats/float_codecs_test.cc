// fp32 and bf16 byte by byte, and the messages of their refusals.

#include <cmath>
#include <cstring>
#include <limits>

#include "compression/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

// Rows 32…101 of a [*, 200] matrix, then a vector of 37: ragged tiles on every side.
Chunk RaggedChunk() {
  Chunk chunk;
  chunk.id = ChunkId(7);
  Segment matrix;
  matrix.tensor = TensorId(4);
  matrix.row = 32;
  matrix.rows = 70;
  matrix.cols = 200;
  Segment vector;
  vector.tensor = TensorId(9);
  vector.rows = 1;
  vector.cols = 37;
  vector.offset = matrix.elements();
  chunk.segments = {matrix, vector};
  chunk.elements = matrix.elements() + vector.elements();
  return chunk;
}

std::vector<float> Ramp(uint64_t n) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = 0.001f * static_cast<float>(i) - 3.0f;
  return values;
}

const Codec& Named(absl::string_view name) {
  absl::StatusOr<const Codec*> codec = FindCodec(name);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return **codec;
}

Bytes Encoded(const Codec& codec, const Chunk& chunk, const std::vector<float>& values) {
  return EncodeChunk(codec, chunk, EncodeOptions(), values.data());
}

Chunk VectorChunk(uint32_t cols) {
  Chunk chunk;
  Segment s;
  s.rows = 1;
  s.cols = cols;
  chunk.segments = {s};
  chunk.elements = cols;
  return chunk;
}

std::vector<float> FromBits(const std::vector<uint32_t>& bits) {
  std::vector<float> values(bits.size());
  std::memcpy(values.data(), bits.data(), 4 * bits.size());
  return values;
}

std::string Hex(const Bytes& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* digits = "0123456789abcdef";
    out += digits[bytes.data()[i] >> 4];
    out += digits[bytes.data()[i] & 15];
  }
  return out;
}

// The exact vectors of docs/formats/codecs.md.
TEST(Formats, EncodeTheGoldenVectors) {
  const std::vector<uint32_t> bits = {0x3f800000, 0xc0490fdb, 0x80000000, 0x3f808000, 0x3f818000,
                                      0x00000001, 0x7f7fffff, 0xff800000, 0x7f800001, 0xffc12345};
  const Chunk chunk = VectorChunk(static_cast<uint32_t>(bits.size()));
  EXPECT_EQ(Hex(Encoded(Named("fp32"), chunk, FromBits(bits))),
            "0000803f"
            "db0f49c0"
            "00000080"
            "0080803f"
            "0080813f"
            "01000000"
            "ffff7f7f"
            "000080ff"
            "0100807f"
            "4523c1ff");
  EXPECT_EQ(Hex(Encoded(Named("bf16"), chunk, FromBits(bits))),
            "803f"
            "49c0"
            "0080"
            "803f"
            "823f"
            "0000"
            "807f"
            "80ff"
            "c07f"
            "c1ff");
}

TEST(Formats, StoreSegmentsInOrderRowMajor) {
  const Chunk chunk = RaggedChunk();
  const std::vector<float> values = Ramp(chunk.elements);
  const Bytes bytes = Encoded(Named("fp32"), chunk, values);
  ASSERT_EQ(bytes.size(), 4 * values.size());
  EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0);
}

TEST(Fp32, KeepsEveryBit) {
  const Chunk chunk = RaggedChunk();
  std::vector<float> values = Ramp(chunk.elements);
  values[5] = FromBits({0x00000001})[0];
  values[6] = std::numeric_limits<float>::quiet_NaN();
  values[7] = -std::numeric_limits<float>::infinity();
  values[8] = -0.0f;
  const Codec& codec = Named("fp32");
  auto opened = codec.Open(chunk, Axis::kRow, Encoded(codec, chunk, values), Content::kWeights);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::vector<float> decoded(chunk.elements);
  DecodeChunk(**opened, chunk, decoded.data());
  EXPECT_EQ(std::memcmp(decoded.data(), values.data(), 4 * values.size()), 0);
}

TEST(Bf16, IsWithinHalfAUnitAndIdempotent) {
  const Chunk chunk = RaggedChunk();
  const std::vector<float> values = Ramp(chunk.elements);
  const Codec& codec = Named("bf16");
  const Bytes bytes = Encoded(codec, chunk, values);
  EXPECT_EQ(bytes.size(), 2 * values.size());
  auto opened = codec.Open(chunk, Axis::kRow, bytes, Content::kGradient);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::vector<float> decoded(chunk.elements);
  DecodeChunk(**opened, chunk, decoded.data());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::fabs(decoded[i] - values[i]), std::fabs(values[i]) / 256) << i;
  }
  EXPECT_EQ(Encoded(codec, chunk, decoded).view(), bytes.view());
}

TEST(EncodedChunk, ReadsAndAccumulatesEveryTile) {
  const Chunk chunk = RaggedChunk();
  const std::vector<float> values = Ramp(chunk.elements);
  for (const std::string name : {"fp32", "bf16"}) {
    SCOPED_TRACE(name);
    const Codec& codec = Named(name);
    auto opened = codec.Open(chunk, Axis::kRow, Encoded(codec, chunk, values), Content::kGradient);
    ASSERT_TRUE(opened.ok()) << opened.status();
    std::vector<float> whole(chunk.elements);
    DecodeChunk(**opened, chunk, whole.data());
    constexpr size_t kLd = kTileCols + 5;
    uint64_t seen = 0;
    ForEachTile(chunk, [&](const Tile& tile) {
      std::vector<float> read(kTileRows * kLd, 77.0f);
      std::vector<float> added(kTileRows * kLd, 77.0f);
      (*opened)->Read(tile, false, kLd, read.data());
      (*opened)->Read(tile, true, kLd, added.data());
      const Segment& s = chunk.segments[tile.segment];
      for (size_t r = 0; r < kTileRows; ++r) {
        for (size_t c = 0; c < kLd; ++c) {
          const bool inside = r < tile.rows && c < tile.cols;
          const float value = inside ? whole[tile.offset(s) + r * s.cols + c] : 0.0f;
          ASSERT_EQ(read[r * kLd + c], inside ? value : 77.0f);
          ASSERT_EQ(added[r * kLd + c], inside ? 77.0f + value : 77.0f);
          seen += inside;
        }
      }
    });
    EXPECT_EQ(seen, chunk.elements);
  }
}

TEST(Open, RefusesOtherLengths) {
  const Chunk chunk = VectorChunk(5);
  for (const std::string name : {"fp32", "bf16"}) {
    const Codec& codec = Named(name);
    const size_t right = codec.MaxEncodedSize(chunk, Axis::kRow);
    for (size_t size = 0; size <= 2 * right; ++size) {
      auto opened =
          codec.Open(chunk, Axis::kRow, Bytes::CopyOf(std::string(size, '\0')), Content::kWeights);
      ASSERT_EQ(opened.ok(), size == right) << name << " " << size;
      if (opened.ok()) continue;
      EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(
          std::string(opened.status().message()),
          HasSubstr("expected " + std::to_string(right) + " bytes, found " + std::to_string(size)));
    }
  }
}

struct BadValue {
  float value;
  const char* text;
};

TEST(Open, LocatesTheFirstInadmissibleElement) {
  const Chunk chunk = RaggedChunk();
  const BadValue bad[] = {{kMaxGradient, "1.1259e+15"},
                          {-kMaxGradient, "-1.1259e+15"},
                          {std::numeric_limits<float>::infinity(), "inf"},
                          {-std::numeric_limits<float>::infinity(), "-inf"},
                          {std::numeric_limits<float>::quiet_NaN(), "nan"}};
  for (const std::string name : {"fp32", "bf16"}) {
    const Codec& codec = Named(name);
    for (const BadValue& b : bad) {
      std::vector<float> values = Ramp(chunk.elements);
      values[66 * 200 + 3] = b.value;
      values[chunk.elements - 1] = b.value;
      auto opened =
          codec.Open(chunk, Axis::kRow, Encoded(codec, chunk, values), Content::kGradient);
      ASSERT_FALSE(opened.ok()) << name << " " << b.text;
      EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
      const std::string message(opened.status().message());
      EXPECT_EQ(InadmissibleElement(opened.status()), uint64_t{66 * 200 + 3});
      EXPECT_THAT(message, HasSubstr("tensor 4 (chunk 7, segment 0, codec " + name + ")"));
      EXPECT_THAT(message, HasSubstr(std::string("row 98, column 3 is ") + b.text + ";"));
      EXPECT_TRUE(
          codec.Open(chunk, Axis::kRow, Encoded(codec, chunk, values), Content::kWeights).ok());

      values[66 * 200 + 3] = 0.0f;
      opened = codec.Open(chunk, Axis::kRow, Encoded(codec, chunk, values), Content::kGradient);
      ASSERT_FALSE(opened.ok());
      EXPECT_THAT(std::string(opened.status().message()),
                  HasSubstr("tensor 9 (chunk 7, segment 1, codec " + name +
                            "): element at row 0, column 36"));
    }
  }
}

TEST(Open, AdmitsTheLargestGradient) {
  const Chunk chunk = VectorChunk(2);
  const std::vector<float> values = {std::nextafter(kMaxGradient, 0.0f), -0x1.fep49f};
  EXPECT_TRUE(
      Named("fp32")
          .Open(chunk, Axis::kRow, Encoded(Named("fp32"), chunk, values), Content::kGradient)
          .ok());
  const std::vector<float> halves = {0x1.fep49f, -0x1.fep49f};
  EXPECT_TRUE(
      Named("bf16")
          .Open(chunk, Axis::kRow, Encoded(Named("bf16"), chunk, halves), Content::kGradient)
          .ok());
}

// For any bytes, opening returns, and opened chunks can be read.
TEST(Open, SurvivesHostileBytes) {
  const Chunk chunk = RaggedChunk();
  uint64_t state = 1;
  std::vector<float> out(chunk.elements);
  for (int round = 0; round < 50; ++round) {
    std::string bytes(chunk.elements * (round % 2 == 0 ? 4 : 2) + (round % 5 == 4 ? 1 : 0), '\0');
    for (char& c : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      c = static_cast<char>(state >> 56);
    }
    for (const std::string name : {"fp32", "bf16"}) {
      for (const Content content : {Content::kGradient, Content::kWeights}) {
        auto opened = Named(name).Open(chunk, Axis::kRow, Bytes::CopyOf(bytes), content);
        if (opened.ok()) DecodeChunk(**opened, chunk, out.data());
      }
    }
  }
}

TEST(Encoder, ChargesItsBytesUntilTheirRelease) {
  MemoryAccount account;
  const Chunk chunk = VectorChunk(100);
  {
    const std::vector<float> values = Ramp(100);
    EncodeOptions options;
    options.kind = MemoryKind::kFetch;
    options.account = &account;
    const Bytes bytes = EncodeChunk(Named("bf16"), chunk, options, values.data());
    EXPECT_EQ(account.live_bytes(MemoryKind::kFetch), 200u);
  }
  EXPECT_EQ(account.live_bytes(), 0u);
}

}  // namespace
}  // namespace eps
