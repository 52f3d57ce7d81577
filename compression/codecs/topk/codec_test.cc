// Top-k byte by byte: its selection, its residuals, and the messages of its refusals.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/memory_account.h"
#include "base/numerics/flush_denormals.h"
#include "compression/codec.h"
#include "compression/reference_codec.h"
#include "compression/testing/codec_testing.h"
#include "compression/testing/row_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status OpenStatus(size_t n, const std::string& bytes, Content content = Content::kGradient) {
  return eps::OpenStatus("topk:0.1", n, bytes, content);
}

std::string Hex(const Bytes& bytes) { return absl::BytesToHexString(bytes.view()); }

uint32_t CountOf(const Bytes& bytes) {
  uint32_t count = 0;
  std::memcpy(&count, bytes.data(), 4);
  return count;
}

uint32_t IndexBytesOf(const Bytes& bytes) {
  uint32_t index = 0;
  std::memcpy(&index, bytes.data() + 8, 4);
  return index;
}

// Returns the nonzero elements that are sent.
std::vector<size_t> Sent(absl::string_view name, const std::vector<float>& values) {
  const std::vector<float> decoded = Decoded(name, values.size(), Encoded(name, values));
  std::vector<size_t> sent;
  for (size_t i = 0; i < decoded.size(); ++i) {
    if (decoded[i] != 0) sent.push_back(i);
  }
  return sent;
}

std::vector<float> AllBut(size_t n, size_t i, float value) {
  std::vector<float> values(n, 0.0f);
  values[i] = value;
  return values;
}

// Returns a hand-made encoded chunk.
std::string Raw(uint32_t count, uint8_t format, const std::string& index,
                const std::vector<uint16_t>& values) {
  std::string out(12, '\0');
  const uint32_t index_bytes = static_cast<uint32_t>(index.size());
  std::memcpy(&out[0], &count, 4);
  out[4] = static_cast<char>(format);
  std::memcpy(&out[8], &index_bytes, 4);
  out += index;
  for (const uint16_t value : values) {
    out += static_cast<char>(value & 0xff);
    out += static_cast<char>(value >> 8);
  }
  return out;
}

std::string U32(std::vector<uint32_t> numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size());
}

void ExpectRefusal(size_t n, const std::string& bytes, const std::string& text) {
  for (const Content content : {Content::kGradient, Content::kWeights}) {
    const absl::Status status = OpenStatus(n, bytes, content);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("of ", n, " elements, codec topk:0.1: ")));
  }
}

constexpr uint16_t kOne = 0x3f80;

TEST(Formats, ChargeTheIndexLikeTheBytes) {
  const Chunk chunk = RowChunk(6400);
  const Codec& codec = Named("topk:0.1");
  MemoryAccount account(uint64_t{1} << 20);
  const Bytes encoded = Encoded("topk:0.1", std::vector<float>(6400, 1.0f));
  Buffer charged(encoded.size(), MemoryKind::kContribution, &account);
  std::memcpy(charged.data(), encoded.data(), encoded.size());
  auto opened = codec.Open(chunk, Axis::kRow, std::move(charged).Freeze(), Content::kGradient);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(codec.IndexSize(chunk), 6400u * 3 / 16 + 12) << "and one word after the last";
  EXPECT_EQ(account.live_bytes(MemoryKind::kContribution), encoded.size() + codec.IndexSize(chunk));
  opened->reset();
  EXPECT_EQ(account.live_bytes(MemoryKind::kContribution), 0u);
}

// The exact vectors of docs/formats/codecs.md.
TEST(Formats, EncodeTheGoldenVectors) {
  const std::vector<float> row = {0.5f, -2.0f, -0.0f, FloatOfBits(0x3f818000), 1.0f, 2.0f, -0.25f,
                                  0.0f, 1.0f,  0.001f};
  EXPECT_EQ(Hex(Encoded("topk:0.2", row)),
            "02000000"
            "01000000"
            "02000000"
            "0103"
            "00c0"
            "0040");
  EXPECT_EQ(Hex(Encoded("topk:0.2:raw32", row)),
            "02000000"
            "00000000"
            "08000000"
            "01000000"
            "05000000"
            "00c0"
            "0040");
  EXPECT_EQ(Hex(Encoded("topk:0.3", row)),
            "03000000"
            "03000000"
            "02000000"
            "2a00"
            "00c0"
            "823f"
            "0040");
  EXPECT_EQ(Hex(Encoded("topk:0.4", row)),
            "04000000"
            "03000000"
            "02000000"
            "3a00"
            "00c0"
            "823f"
            "803f"
            "0040");
  EXPECT_EQ(Hex(Encoded("topk:0.001", AllBut(1000, 300, 3))),
            "01000000"
            "01000000"
            "02000000"
            "ff2d"
            "4040");
  EXPECT_EQ(Hex(Encoded("topk:0.001", AllBut(1000, 600, 3))),
            "01000000"
            "02000000"
            "02000000"
            "5802"
            "4040");
}

TEST(Formats, WriteEscapesForLongGaps) {
  const auto index_of = [](size_t n, size_t i) {
    const std::string hex = Hex(Encoded("topk:0.000001", AllBut(n, i, 1)));
    return hex.substr(8, 2) + " " + hex.substr(24, hex.size() - 24 - 4);
  };
  EXPECT_EQ(index_of(5000, 0), "01 00");
  EXPECT_EQ(index_of(5000, 254), "01 fe");
  EXPECT_EQ(index_of(5000, 255), "01 ff00");
  EXPECT_EQ(index_of(5000, 509), "01 fffe");
  EXPECT_EQ(index_of(5000, 510), "02 fe01");  // delta8 would need three bytes
  EXPECT_EQ(index_of(70000, 65534), "02 feff");
  EXPECT_EQ(index_of(70000, 65535), "02 ffff0000");
  EXPECT_EQ(index_of(70000, 69999), "02 ffff7011");
  EXPECT_EQ(index_of(8, 7), "01 07");  // the bitmap is not shorter
}

TEST(Formats, AreAllReadable) {
  std::vector<float> expected(300, 0.0f);
  expected[1] = 1;
  expected[290] = 2;
  const std::vector<uint16_t> values = {kOne, 0x4000};
  std::string bitmap(38, '\0');
  bitmap[0] = 2;
  bitmap[36] = 4;
  for (const std::string& bytes :
       {Raw(2, 0, U32({1, 290}), values), Raw(2, 1, std::string("\x01\xff\x21", 3), values),
        Raw(2, 2, std::string("\x01\x00\x20\x01", 4), values), Raw(2, 3, bitmap, values)}) {
    EXPECT_EQ(Decoded("topk:0.1", 300, Bytes::CopyOf(bytes)), expected);
  }
}

TEST(Choice, RoundsTheFractionUp) {
  struct Case {
    const char* codec;
    size_t n;
    uint32_t k;
  };
  const Case cases[] = {{"topk:0.1", 30, 3},    {"topk:0.1", 31, 4},    {"topk:0.07", 100, 7},
                        {"topk:0.01", 1, 1},    {"topk:0.01", 100, 1},  {"topk:0.01", 101, 2},
                        {"topk:0.29", 100, 29}, {"topk:0.5", 5, 3},     {"topk:0.000000001", 9, 1},
                        {"topk:0.3", 10, 3},    {"topk:0.1", 5000, 500}};
  for (const Case& c : cases) {
    std::vector<float> values(c.n);
    for (size_t i = 0; i < c.n; ++i) values[i] = static_cast<float>(i + 1);
    EXPECT_EQ(CountOf(Encoded(c.codec, values)), c.k) << c.codec << " of " << c.n;
  }
}

TEST(Choice, PrefersLargeMagnitudesThenLowIndexes) {
  EXPECT_THAT(Sent("topk:0.5", {1, -3, 2, 3, -2, 1}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Sent("topk:0.3", {1, 1, -1, 1, 1, 1, 1, 1, -1, 1}), ElementsAre(0, 1, 2));
  EXPECT_THAT(Sent("topk:0.3", {1, 1, 2, 1, 2, 1, 1, 1, 2, 2}), ElementsAre(2, 4, 8));
}

TEST(Choice, SkipsZeros) {
  const Bytes none = Encoded("topk:0.5", std::vector<float>(5000, -0.0f));
  EXPECT_EQ(Hex(none),
            "00000000"
            "01000000"
            "00000000");
  EXPECT_EQ(Hex(Encoded("topk:0.5:raw32", {0, 0})),
            "00000000"
            "00000000"
            "00000000");
  for (const size_t n : {100u, 5000u}) {
    std::vector<float> values = AllBut(n, 17, -4);
    values[63] = 1e-30f;
    EXPECT_THAT(Sent("topk:0.5", values), ElementsAre(17, 63));
    EXPECT_EQ(CountOf(Encoded("topk:0.5:sampled", values)), 2u);
  }
}

// The bits decide, so it does not matter whether the thread reads denormals as zero.
TEST(Choice, KeepsDenormals) {
  const std::vector<float> values = {0, FloatOfBits(0x00000001), FloatOfBits(0x80400000), 0};
  for (const char* codec : {"topk:0.5", "topk:0.5:sampled"}) {
    const std::string expected = Hex(Encoded(codec, values));
    EXPECT_EQ(expected,
              "02000000"
              "03000000"
              "01000000"
              "06"
              "0000"
              "4080");
    ScopedFlushDenormals flush;
    const Bytes bytes = Encoded(codec, values);
    EXPECT_EQ(Hex(bytes), expected) << codec;
    EXPECT_EQ(BitsOfFloat(Decoded(codec, 4, bytes)[2]), 0x80400000u);
    EXPECT_TRUE(OpenStatus(4, std::string(bytes.view())).ok());  // a zero may be sent
  }
}

// Inputs for which a threshold guessed from a sample is far too low, far too high or reached by
// all.
TEST(Choice, MatchesTheReferenceWhereGuessingIsHard) {
  constexpr size_t kN = 30000;
  TestRandom random;
  std::vector<std::vector<float>> inputs(7, std::vector<float>(kN, 0.0f));
  for (size_t i = 0; i < kN; ++i) {
    const float noise = static_cast<float>(random.Next() % 100000) * 1e-5f;
    inputs[0][i] = i % 61 == 0 ? 100 + noise : noise;
    inputs[1][i] = i % 61 == 0 ? noise : 100 + noise;
    inputs[2][i] = static_cast<float>(random.Next() % 3);
    inputs[3][i] = i % 900 == 0 ? noise : 0.0f;
    inputs[4][i] = 1.5f;
    inputs[5][i] = static_cast<float>(i);
    inputs[6][i] = i < 12 ? -noise : std::ldexp(noise, static_cast<int>(i % 40) - 60);
  }
  for (const char* name : {"topk:0.001", "topk:0.01", "topk:0.2", "topk:0.5", "topk:0.01:sampled",
                           "topk:0.5:sampled"}) {
    const auto reference = NewReferenceCodec(name);
    ASSERT_TRUE(reference.ok()) << reference.status();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string expected =
          (*reference)->Encode(RowChunk(kN), Axis::kRow, inputs[i].data(), nullptr);
      OnEveryTarget([&] {
        ASSERT_TRUE(Encoded(name, inputs[i]).view() == expected) << name << ", input " << i;
      });
    }
  }
}

// Returns EncodeOptions::count for the pieces of one row.
std::vector<uint64_t> Counts(absl::string_view name, const std::vector<std::vector<float>>& rows) {
  std::vector<Chunk> chunks;
  for (const std::vector<float>& row : rows) chunks.push_back(RowChunk(row.size()));
  return Named(name).CountsOf(chunks, [&](size_t i) { return rows[i].data(); });
}

TEST(WholeTensors, CountTheLargestOfAllChunks) {
  EXPECT_THAT(Counts("topk:0.5:tensor", {{1, 2, 9}, {8, 7}, {3}}), ElementsAre(1, 2, 0));
  EXPECT_THAT(Counts("topk:0.01:tensor", {{1, 2, 3}, {-4, 3}}), ElementsAre(0, 1));
  EXPECT_THAT(Counts("topk:0.3:tensor", {{1, 0, 1}, {1, 1, 1, 2}, {1, 1, 1}}),
              ElementsAre(2, 1, 0));
  EXPECT_THAT(Counts("topk:0.5:tensor", {{0, 0, -0.0f}, {0, 5}, {-1e-40f}}), ElementsAre(0, 1, 1));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Counts("topk:0.2:tensor", {{1, infinity, 2}, {nan, 3}}), ElementsAre(0, 1));
}

// The pieces send the same elements as the whole row.
TEST(WholeTensors, SendTheSameAsOneChunk) {
  std::vector<float> row(9000);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<float>((i * 7919) % 61) * (i < 5000 ? 0.25f : 1.0f);
  }
  const std::vector<float> expected = Decoded("topk:0.1", row.size(), Encoded("topk:0.1", row));
  for (const size_t piece : {700u, 4097u, 8999u}) {
    std::vector<std::vector<float>> rows;
    for (size_t begin = 0; begin < row.size(); begin += piece) {
      rows.emplace_back(row.begin() + begin, row.begin() + std::min(row.size(), begin + piece));
    }
    const std::vector<uint64_t> counts = Counts("topk:0.1:tensor", rows);
    std::vector<float> found;
    for (size_t i = 0; i < rows.size(); ++i) {
      EncodeOptions options;
      options.count = counts[i];
      const Bytes bytes =
          EncodeChunk(Named("topk:0.1:tensor"), RowChunk(rows[i].size()), options, rows[i].data());
      EXPECT_EQ(CountOf(bytes), counts[i]);
      const std::vector<float> decoded = Decoded("topk:0.1:tensor", rows[i].size(), bytes);
      found.insert(found.end(), decoded.begin(), decoded.end());
    }
    EXPECT_EQ(found, expected) << "pieces of " << piece;
  }
}

TEST(WholeTensors, MaySelectAllInOneChunk) {
  const Codec& codec = Named("topk:0.1:tensor");
  const std::vector<float> row(300, 1.0f);
  EncodeOptions options;
  options.count = row.size();
  const Bytes bytes = EncodeChunk(codec, RowChunk(row.size()), options, row.data());
  EXPECT_EQ(CountOf(bytes), 300u);
  EXPECT_EQ(bytes.size(), codec.MaxEncodedSize(RowChunk(row.size()), Axis::kRow));
  EXPECT_EQ(Decoded("topk:0.1:tensor", row.size(), bytes), row);
}

TEST(Sampled, SelectsAllAboveTheSampledThreshold) {
  std::vector<float> values(130, 1.0f);
  values[0] = 1.5f;
  values[64] = -2.0f;  // the largest of the sample 0, 64, 128; the rank is ceil(0.3 * 3) = 1
  values[63] = 100.0f;
  values[65] = 1.9f;
  values[129] = -2.0f;
  EXPECT_THAT(Sent("topk:0.3:sampled", values), ElementsAre(63, 64, 129));
  // Rank ceil(0.4 * 3) = 2.
  EXPECT_THAT(Sent("topk:0.4:sampled", values), ElementsAre(0, 63, 64, 65, 129));
}

TEST(Sampled, StopsAtTwiceTheExactCount) {
  std::vector<float> values(200, 3.0f);
  for (size_t i = 0; i < 200; i += 64) values[i] = 1.0f;
  EXPECT_THAT(Sent("topk:0.02:sampled", values), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const Bytes bytes = Encoded("topk:0.02:sampled", values);
  EXPECT_LE(bytes.size(), Named("topk:0.02:sampled").MaxEncodedSize(RowChunk(200), Axis::kRow));
}

TEST(Feedback, SentAndKeptSumToTheGradients) {
  for (const char* codec : {"topk:0.05", "topk:0.05:raw32", "topk:0.05:sampled"}) {
    constexpr size_t kN = 5000;
    TestRandom random;
    std::vector<float> residual(kN, 0.0f);
    std::vector<double> given(kN, 0.0);
    std::vector<double> sent(kN, 0.0);
    for (int step = 0; step < 12; ++step) {
      std::vector<float> gradient(kN);
      for (size_t i = 0; i < kN; ++i) {  // small integers: every sum is exact
        gradient[i] = static_cast<float>(static_cast<int>(random.Next() % 4001) - 2000);
        given[i] += gradient[i];
      }
      const std::vector<float> decoded = Decoded(codec, kN, Encoded(codec, gradient, &residual));
      for (size_t i = 0; i < kN; ++i) sent[i] += decoded[i];
    }
    size_t never = 0;
    for (size_t i = 0; i < kN; ++i) {
      ASSERT_EQ(sent[i] + residual[i], given[i]) << codec << ", element " << i;
      never += sent[i] == 0;
    }
    EXPECT_LT(never, kN * 3 / 4);
  }
}

TEST(Feedback, SendsAccumulatedResiduals) {
  std::vector<float> residual(10, 0.0f);
  std::vector<float> gradient(10, 0.0f);
  gradient[2] = 5;
  gradient[7] = 2;
  EXPECT_EQ(Hex(Encoded("topk:0.1", gradient, &residual)).substr(24),
            "02"
            "a040");
  EXPECT_EQ(residual[2], 0.0f);
  EXPECT_EQ(residual[7], 2.0f);
  gradient[2] = 3;
  EXPECT_EQ(Hex(Encoded("topk:0.1", gradient, &residual)).substr(24),
            "07"
            "8040");
  EXPECT_EQ(residual[2], 3.0f);
  EXPECT_EQ(residual[7], 0.0f);
}

TEST(Feedback, AddsWithDenormalsAsZeros) {
  const float tiny = FloatOfBits(0x00400000);
  std::vector<float> residual = {1.0f, tiny, tiny, -0.0f};
  const Bytes bytes = Encoded("topk:0.5", {-1.0f, tiny, 0.0f, -0.0f}, &residual);
  EXPECT_EQ(CountOf(bytes), 0u);
  EXPECT_EQ(BitsOfFloat(residual[0]), 0u);
  EXPECT_EQ(BitsOfFloat(residual[1]), 0u);
  EXPECT_EQ(BitsOfFloat(residual[2]), 0u);
  EXPECT_EQ(BitsOfFloat(residual[3]), 0x80000000u);
}

TEST(Encoder, ChargesScratchAndBytesUntilTheirRelease) {
  MemoryAccount account;
  const Chunk chunk = RowChunk(5000);
  std::vector<float> values(5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  for (const bool feedback : {false, true}) {
    std::vector<float> residual(5000, 0.0f);
    EncodeOptions options;
    options.kind = MemoryKind::kContribution;
    options.account = &account;
    if (feedback) options.residual_or_null = residual.data();
    const Bytes bytes = EncodeChunk(Named("topk:0.1"), chunk, options, values.data());
    EXPECT_EQ(account.live_bytes(), bytes.size());
    EXPECT_EQ(account.live_bytes(MemoryKind::kContribution), bytes.size());
  }
  EXPECT_EQ(account.live_bytes(), 0u);
  EXPECT_GE(account.peak_bytes(MemoryKind::kScratch), 4 * 5000u);
}

TEST(Inadmissible, ValuesAreSentAndLocated) {
  const Chunk chunk = RaggedChunk();
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::quiet_NaN(), HUGE_VALF,
                          -HUGE_VALF, kMaxGradient, -kMaxGradient,
                          // The last one is inadmissible after rounding.
                          std::nextafter(kMaxGradient, 0.0f)}) {
    for (const char* name : {"topk:0.01", "topk:0.01:raw32", "topk:0.01:sampled"}) {
      std::vector<float> values(chunk.elements, 0.5f);
      for (uint64_t i = 0; i < chunk.elements; i += 3) values[i] = 1.0f;
      values[66 * 200 + 3] = bad;
      values[chunk.elements - 1] = bad;
      // Zeros before the first bad element, so that it is sent.
      if (std::string(name) == "topk:0.01:sampled") {
        std::fill(values.begin(), values.begin() + 66 * 200, 0.0f);
      }
      const Codec& codec = Named(name);
      const Bytes bytes = EncodeChunk(codec, chunk, EncodeOptions(), values.data());
      const auto opened = codec.Open(chunk, Axis::kRow, bytes, Content::kGradient);
      ASSERT_FALSE(opened.ok()) << name << " " << bad;
      EXPECT_EQ(InadmissibleElement(opened.status()), uint64_t{66 * 200 + 3}) << name;
      EXPECT_THAT(std::string(opened.status().message()),
                  HasSubstr(absl::StrCat("tensor 4 (chunk 7, segment 0, codec ", name,
                                         "): element at row 98, column 3 is ")));
      EXPECT_TRUE(codec.Open(chunk, Axis::kRow, bytes, Content::kWeights).ok());
    }
  }
}

TEST(Inadmissible, NanOutranksInfinity) {
  std::vector<float> values(5000, HUGE_VALF);
  values[4000] = FloatOfBits(0x7f800001);
  values[4500] = FloatOfBits(0xffffffff);
  Bytes bytes = Encoded("topk:0.0001", values);  // one element; all NaNs are equal
  EXPECT_TRUE(std::isnan(Decoded("topk:0.0001", 5000, bytes)[4000]));
  bytes = Encoded("topk:0.0003", values);
  const std::vector<float> decoded = Decoded("topk:0.0003", 5000, bytes);
  EXPECT_TRUE(std::isnan(decoded[4000]) && std::isnan(decoded[4500]));
  EXPECT_EQ(CountOf(bytes), 2u);
}

TEST(Inadmissible, NanInTheResidualIsSent) {
  std::vector<float> residual(10, 0.0f);
  residual[3] = std::nanf("");
  EXPECT_TRUE(std::isnan(
      Decoded("topk:0.1", 10, Encoded("topk:0.1", std::vector<float>(10, 1.0f), &residual))[3]));
  EXPECT_TRUE(std::isnan(residual[3]));
}

TEST(Inadmissible, TheLargestGradientIsAdmitted) {
  EXPECT_TRUE(OpenStatus(10, Raw(2, 1, std::string("\0\0", 2), {0x587f, 0xd87f})).ok());
  EXPECT_EQ(InadmissibleElement(OpenStatus(10, Raw(2, 1, "\x01\x02", {0x587f, 0xd880}))), 4u);
}

TEST(Refusal, OfAShortHeader) {
  ExpectRefusal(100, "", "expected a header of 12 bytes, found 0 bytes");
  ExpectRefusal(100, std::string(11, '\0'), "expected a header of 12 bytes, found 11 bytes");
}

TEST(Refusal, OfTooManyElements) {
  ExpectRefusal(3, Raw(4, 0, U32({0, 1, 2, 3}), {kOne, kOne, kOne, kOne}),
                "it holds 4 elements, expected 3 at most");
  ExpectRefusal(3, Raw(0xffffffffu, 0, "", {}), "it holds 4294967295 elements");
}

TEST(Refusal, OfNonzeroReservedBytes) {
  for (size_t at = 5; at < 8; ++at) {
    std::string bytes = Raw(1, 1, std::string(1, '\0'), {kOne});
    EXPECT_TRUE(OpenStatus(3, bytes).ok());
    bytes[at] = 1;
    ExpectRefusal(3, bytes, "bytes 5 to 7 of its header are not zero");
  }
}

TEST(Refusal, OfAWrongLength) {
  const std::string bytes = Raw(2, 1, std::string(2, '\0'), {kOne, kOne});
  ExpectRefusal(3, bytes.substr(0, 17),
                "expected 18 bytes for 2 elements and an index of 2 bytes, found 17");
  ExpectRefusal(3, bytes + "x",
                "expected 18 bytes for 2 elements and an index of 2 bytes, found 19");
  std::string huge = bytes;
  std::memset(&huge[8], 0xff, 4);
  ExpectRefusal(3, huge, "expected 4294967311 bytes");
}

TEST(Refusal, OfAnUnknownFormat) {
  for (const uint8_t format : {4, 255}) {
    ExpectRefusal(3, Raw(1, format, std::string(1, '\0'), {kOne}),
                  absl::StrCat("index format ", static_cast<int>(format), " is unknown"));
  }
}

TEST(Refusal, OfADescendingRaw32Index) {
  const std::vector<uint16_t> two = {kOne, kOne};
  ExpectRefusal(9, Raw(2, 0, U32({5, 4}), two), "number 1 of the index is 4, expected more than 5");
  ExpectRefusal(9, Raw(2, 0, U32({5, 5}), two), "number 1 of the index is 5, expected more than 5");
}

TEST(Refusal, OfARaw32IndexPastEnd) {
  ExpectRefusal(9, Raw(2, 0, U32({5, 9}), {kOne, kOne}),
                "number 1 of the index is 9, expected less than 9");
  ExpectRefusal(9, Raw(1, 0, U32({0xffffffffu}), {kOne}), "expected less than 9");
}

TEST(Refusal, OfAWrongRaw32IndexLength) {
  ExpectRefusal(9, Raw(2, 0, U32({1}), {kOne, kOne}), "raw32 index has 4 bytes, expected 8");
  ExpectRefusal(9, Raw(1, 0, U32({1, 2}), {kOne}), "raw32 index has 8 bytes, expected 4");
}

TEST(Refusal, OfADeltaIndexPastTheEnd) {
  ExpectRefusal(9, Raw(2, 1, "\x04\x04", {kOne, kOne}),
                "number 1 of the index is 9, expected less than 9");
  ExpectRefusal(300, Raw(1, 1, "\xff\x2d", {kOne}), "number 0 of the index is 300");
  ExpectRefusal(9, Raw(1, 2, std::string("\x09\x00", 2), {kOne}), "number 0 of the index is 9");
}

TEST(Refusal, OfATruncatedDeltaIndex) {
  ExpectRefusal(900, Raw(1, 1, "\xff\xff", {kOne}),
                "the index of 2 bytes ends within number 0 of 1");
  ExpectRefusal(900, Raw(2, 1, "\x01", {kOne, kOne}),
                "the index of 1 bytes ends within number 1 of 2");
  ExpectRefusal(900, Raw(1, 2, "\xff\xff", {kOne}), "ends within number 0 of 1");
  ExpectRefusal(900, Raw(1, 2, "\x01", {kOne}), "ends within number 0 of 1");
}

TEST(Refusal, OfADeltaIndexWithWrongLength) {
  ExpectRefusal(9, Raw(1, 1, "\x01\x01", {kOne}), "the index has 2 bytes, expected 1");
  ExpectRefusal(9, Raw(0, 1, "\x01", {}), "the index has 1 bytes, expected 0");
  ExpectRefusal(9, Raw(1, 2, std::string("\x01\x00\x01", 3), {kOne}),
                "the index has 3 bytes, expected 2");
}

TEST(Refusal, OfABitmapWithWrongLength) {
  ExpectRefusal(9, Raw(1, 3, "\x01", {kOne}), "bitmap index has 1 bytes, expected 2");
  ExpectRefusal(9, Raw(1, 3, std::string("\x01\x00\x00", 3), {kOne}),
                "bitmap index has 3 bytes, expected 2");
}

TEST(Refusal, OfABitmapWithExtraBits) {
  EXPECT_TRUE(OpenStatus(9, Raw(1, 3, std::string("\x00\x01", 2), {kOne})).ok());
  ExpectRefusal(9, Raw(1, 3, std::string("\x00\x02", 2), {kOne}),
                "the bitmap has a bit set after its 9 elements");
}

TEST(Refusal, OfABitmapWithWrongCount) {
  ExpectRefusal(9, Raw(1, 3, std::string("\x03\x00", 2), {kOne}),
                "the index has 2 elements, expected 1");
  ExpectRefusal(9, Raw(2, 3, std::string("\x00\x01", 2), {kOne, kOne}),
                "the index has 1 elements, expected 2");
}

TEST(Sizes, StayWithinATightBound) {
  for (size_t n = 1; n <= 14; ++n) {
    for (const char* name :
         {"topk:0.1", "topk:0.34", "topk:0.5", "topk:0.5:raw32", "topk:0.2:sampled"}) {
      const size_t bound = Named(name).MaxEncodedSize(RowChunk(n), Axis::kRow);
      size_t largest = 0;
      for (uint32_t set = 0; set < 1u << n; ++set) {
        std::vector<float> values(n);
        for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(set >> i & 1);
        largest = std::max(largest, Encoded(name, values).size());
      }
      EXPECT_LE(largest, bound) << name << " of " << n;
      // With a sample, small chunks do not reach the limit.
      const bool exact = std::string(name) != "topk:0.2:sampled";
      if (exact) {
        EXPECT_EQ(largest, bound) << name << " of " << n;
      }
    }
  }
  // A single long gap needs the most escapes.
  for (const size_t n : {255u, 256u, 2000u, 70000u, 140000u}) {
    for (const char* name : {"topk:0.00001", "topk:0.001", "topk:0.01", "topk:0.1"}) {
      const uint32_t k = CountOf(Encoded(name, std::vector<float>(n, 1.0f)));
      std::vector<float> values(n, 0.0f);
      std::fill(values.end() - k, values.end(), 1.0f);
      EXPECT_EQ(Encoded(name, values).size(), Named(name).MaxEncodedSize(RowChunk(n), Axis::kRow))
          << name << " of " << n;
    }
  }
}

TEST(Sizes, OfTheIndexAreNearTheEntropy) {
  constexpr size_t kN = size_t{1} << 20;
  TestRandom random;
  std::vector<float> values(kN);
  for (float& value : values) value = static_cast<float>(random.Next() >> 8);
  const Bytes bytes = Encoded("topk:0.01", values);
  const double p = static_cast<double>(CountOf(bytes)) / kN;
  const double entropy = -(p * std::log2(p) + (1 - p) * std::log2(1 - p)) / p;
  const double bits = 8.0 * IndexBytesOf(bytes) / CountOf(bytes);
  EXPECT_NEAR(entropy, 8.08, 0.01);
  EXPECT_LE(bits, 1.10 * entropy);
  EXPECT_NEAR(bits, 8.67, 0.05);
  EXPECT_NEAR(Named("topk:0.01").traits().bits_per_element, 8.0 * bytes.size() / kN, 0.001);
}

TEST(Traits, GiveTheExpectedBits) {
  constexpr size_t kN = size_t{1} << 20;
  TestRandom random;
  std::vector<float> values(kN);
  for (float& value : values) value = static_cast<float>(random.Next() >> 8);
  for (const char* name : {"topk:0.0005", "topk:0.1", "topk:0.25", "topk:0.02:raw32"}) {
    const Codec::Traits& traits = Named(name).traits();
    EXPECT_EQ(traits.id, CodecId{32});
    EXPECT_TRUE(traits.uses_residual);
    EXPECT_FALSE(traits.exact || traits.fixed_size);
    const double bits = 8.0 * Encoded(name, values).size() / kN;
    EXPECT_NEAR(traits.bits_per_element, bits, 0.01 * bits) << name;
  }
}

TEST(Names, AreReadStrictly) {
  for (const char* name :
       {"topk:0.5", "topk:0.001", "topk:0.123456789", "topk:0.10", "topk:0.01:sampled",
        "topk:0.01:raw32:sampled", "topk:0.01:tensor", "topk:0.01:raw32:tensor"}) {
    EXPECT_EQ(Named(name).name(), name);
  }
  struct Case {
    const char* name;
    const char* text;
  };
  const Case cases[] = {
      {"topk", "FRACTION is missing; the syntax is topk:FRACTION[:raw32][:fp32][:sampled|:tensor]"},
      {"topk:", "FRACTION is \"\", expected a decimal number in (0, 0.5] like 0.01"},
      {"topk:0", "FRACTION is \"0\""},
      {"topk:0.0", "FRACTION is \"0.0\""},
      {"topk:0.51", "FRACTION is \"0.51\""},
      {"topk:0.500000001", "FRACTION is \"0.500000001\""},
      {"topk:1.0", "FRACTION is \"1.0\""},
      {"topk:.1", "FRACTION is \".1\""},
      {"topk:1e-2", "FRACTION is \"1e-2\""},
      {"topk:0.1x", "FRACTION is \"0.1x\""},
      {"topk:0.-1", "FRACTION is \"0.-1\""},
      {"topk:00.1", "FRACTION is \"00.1\""},
      {"topk:0.1234567891", "with at most 9 places"},
      {"topk:raw32", "FRACTION is \"raw32\""},
      {"topk:0.1:packed", "\"packed\" was not expected as parameter 2"},
      {"topk:0.1:sampled:raw32", "\"raw32\" was not expected as parameter 3"},
      {"topk:0.1:raw32:raw32", "\"raw32\" was not expected as parameter 3"},
      {"topk:0.1:sampled:tensor", "sampled and tensor exclude each other"},
      {"topk:0.1:tensor:sampled", "\"sampled\" was not expected as parameter 3"},
      {"topk:0.1:", "\"\" was not expected as parameter 2"},
  };
  for (const Case& c : cases) {
    const absl::Status status = FindCodec(c.name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
  }
}

}  // namespace
}  // namespace eps
