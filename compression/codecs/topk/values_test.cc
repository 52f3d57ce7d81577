// Top-k with values of FP32 (topk:FRACTION:fp32), byte by byte: the bits of the chosen elements on
// the wire and back, residuals, sizes, and refusals.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "base/numerics/flush_denormals.h"
#include "compression/codec.h"
#include "compression/testing/codec_testing.h"
#include "compression/testing/row_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNames[] = {"topk:0.1:fp32",         "topk:0.1:raw32:fp32",
                                  "topk:0.1:fp32:sampled", "topk:0.1:raw32:fp32:sampled",
                                  "topk:0.1:fp32:tensor",  "topk:0.1:raw32:fp32:tensor"};

std::string Hex(const Bytes& bytes) { return absl::BytesToHexString(bytes.view()); }

// Returns a hand-made encoded chunk with a raw32 index.
std::string Raw(const std::vector<uint32_t>& index, const std::vector<uint32_t>& values) {
  std::string out(12, '\0');
  const auto put = [](uint32_t number, size_t at, std::string* text) {
    std::memcpy(&(*text)[at], &number, sizeof(number));
  };
  put(static_cast<uint32_t>(index.size()), 0, &out);
  put(static_cast<uint32_t>(4 * index.size()), 8, &out);
  for (const std::vector<uint32_t>& numbers : {index, values}) {
    for (const uint32_t number : numbers) {
      out.resize(out.size() + 4);
      put(number, out.size() - 4, &out);
    }
  }
  return out;
}

constexpr uint32_t kOne = 0x3f800000;

// The exact vectors of docs/formats/codecs.md.
TEST(TopkFp32, EncodesTheGoldenVectors) {
  const std::vector<float> row = {0.5f, -2.0f, -0.0f, FloatOfBits(0x3f818000), 1.0f, 2.0f, -0.25f,
                                  0.0f, 1.0f,  0.001f};
  EXPECT_EQ(Hex(Encoded("topk:0.2:fp32", row)),
            "02000000"
            "01000000"
            "02000000"
            "0103"
            "000000c0"
            "00000040");
  EXPECT_EQ(Hex(Encoded("topk:0.3:raw32:fp32", row)),
            "03000000"
            "00000000"
            "0c000000"
            "01000000"
            "03000000"
            "05000000"
            "000000c0"
            "0080813f"
            "00000040");
}

TEST(TopkFp32, KeepsEveryBitOfChosenElements) {
  TestRandom random;
  std::vector<float> values(9000);
  for (float& value : values) {
    // Any bits but those of infinities and NaN, which a residual would change.
    do value = FloatOfBits(random.Next());
    while (!std::isfinite(value));
  }
  values[17] = FloatOfBits(1);
  for (const char* const name : kNames) {
    const Bytes bytes = Encoded(name, values);
    const std::vector<float> decoded = Decoded(name, values.size(), bytes);
    uint32_t sent = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (BitsOfFloat(decoded[i]) == 0) continue;
      ASSERT_EQ(BitsOfFloat(decoded[i]), BitsOfFloat(values[i])) << name << ", element " << i;
      ++sent;
    }
    uint32_t count = 0;
    std::memcpy(&count, bytes.data(), sizeof(count));
    EXPECT_EQ(sent, count) << name;
    EXPECT_GT(sent, 400u) << name;
  }
  std::vector<float> denormals(20, 0.0f);
  denormals[3] = FloatOfBits(0x80000001);
  ScopedFlushDenormals flush;
  const Bytes bytes = Encoded("topk:0.1:fp32", denormals);
  EXPECT_EQ(BitsOfFloat(Decoded("topk:0.1:fp32", 20, bytes)[3]), 0x80000001u);
}

TEST(TopkFp32, LeavesNoResidualOfSentElements) {
  for (const char* const name : kNames) {
    constexpr size_t kN = 5000;
    TestRandom random;
    std::vector<float> residual(kN, 0.0f);
    for (int step = 0; step < 5; ++step) {
      std::vector<float> sum(kN);
      std::vector<float> gradient(kN);
      for (size_t i = 0; i < kN; ++i) {
        gradient[i] = std::ldexp(static_cast<float>(random.Next()), -20) - 2048.0f;
        sum[i] = gradient[i] + residual[i];
      }
      const std::vector<float> sent = Decoded(name, kN, Encoded(name, gradient, &residual));
      size_t chosen = 0;
      for (size_t i = 0; i < kN; ++i) {
        if (sent[i] != 0) {
          ASSERT_EQ(sent[i], sum[i]) << name << ", element " << i;
          ASSERT_EQ(BitsOfFloat(residual[i]), 0u) << name << ", element " << i;
          ++chosen;
        } else {
          ASSERT_EQ(residual[i], sum[i]) << name << ", element " << i;
        }
      }
      EXPECT_GT(chosen, kN / 50) << name;
    }
  }
}

TEST(TopkFp32, ChoosesLikeBf16) {
  const std::vector<float> values = {1, -3, 2, 3, -2, 1, 0, 5, -5, 4};
  for (const std::string end : {"", ":sampled", ":tensor"}) {
    const std::vector<float> expected =
        Decoded("topk:0.3" + end, 10, Encoded("topk:0.3" + end, values));
    EXPECT_EQ(Decoded("topk:0.3:fp32" + end, 10, Encoded("topk:0.3:fp32" + end, values)), expected);
  }
}

TEST(TopkFp32, ReadsValuesInEveryIndexFormat) {
  std::vector<float> expected(300, 0.0f);
  expected[1] = FloatOfBits(0x3f800001);
  expected[290] = FloatOfBits(0xc0490fdb);
  std::string bitmap(38, '\0');
  bitmap[0] = 2;
  bitmap[36] = 4;
  const std::string raw32 = Raw({1, 290}, {0x3f800001, 0xc0490fdb});
  const std::string values = raw32.substr(20);
  const auto with = [&](char format, const std::string& index) {
    std::string out = raw32.substr(0, 12);
    out[4] = format;
    out[8] = static_cast<char>(index.size());
    return out + index + values;
  };
  for (const std::string& bytes : {raw32, with(1, std::string("\x01\xff\x21", 3)),
                                   with(2, std::string("\x01\x00\x20\x01", 4)), with(3, bitmap)}) {
    for (const char* const name : kNames) {
      EXPECT_EQ(Decoded(name, 300, Bytes::CopyOf(bytes)), expected) << name;
    }
  }
}

TEST(TopkFp32, RefusesBadIndexes) {
  const struct {
    std::vector<uint32_t> index;
    const char* text;
  } cases[] = {{{5, 4}, "number 1 of the index is 4, expected more than 5"},
               {{5, 5}, "number 1 of the index is 5, expected more than 5"},
               {{5, 9}, "number 1 of the index is 9, expected less than 9"}};
  for (const char* const name : kNames) {
    for (const auto& c : cases) {
      const absl::Status status = OpenStatus(name, 9, Raw(c.index, {kOne, kOne}));
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("of 9 elements, codec ", name, ": ", c.text)));
    }
  }
}

TEST(TopkFp32, RefusesValuesOfAnotherWidth) {
  const std::string bytes = Raw({1, 3}, {kOne, kOne});
  EXPECT_TRUE(OpenStatus("topk:0.1:fp32", 9, bytes).ok());
  for (const Content content : {Content::kGradient, Content::kWeights}) {
    for (const size_t size : {24u, 26u, 27u}) {
      EXPECT_THAT(
          std::string(OpenStatus("topk:0.1:fp32", 9, bytes.substr(0, size), content).message()),
          HasSubstr(absl::StrCat("expected 28 bytes for 2 elements and an index of 8 bytes, "
                                 "found ",
                                 size)));
    }
    EXPECT_FALSE(OpenStatus("topk:0.1:fp32", 9, bytes + "x", content).ok());
    EXPECT_THAT(std::string(OpenStatus("topk:0.1", 9, bytes, content).message()),
                HasSubstr("expected 24 bytes"));
  }
  // A length that does not fit into 32 bits.
  std::string huge = Raw({1}, {kOne});
  std::memset(&huge[8], 0xff, 4);
  EXPECT_THAT(std::string(OpenStatus("topk:0.1:fp32", 9, huge).message()),
              HasSubstr("expected 4294967311 bytes"));
}

TEST(TopkFp32, LocatesInadmissibleGradients) {
  const Chunk chunk = RaggedChunk();
  for (const float bad : {std::nanf(""), FloatOfBits(0x7f800001), HUGE_VALF, -HUGE_VALF,
                          kMaxGradient, -kMaxGradient}) {
    std::vector<float> values(chunk.elements, 0.5f);
    values[66 * 200 + 3] = bad;
    values[chunk.elements - 1] = bad;
    const Codec& codec = Named("topk:0.01:raw32:fp32");
    const Bytes bytes = EncodeChunk(codec, chunk, EncodeOptions(), values.data());
    const absl::Status status = codec.Open(chunk, Axis::kRow, bytes, Content::kGradient).status();
    EXPECT_EQ(InadmissibleElement(status), uint64_t{66 * 200 + 3}) << bad;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("tensor 4 (chunk 7, segment 0, codec topk:0.01:raw32:fp32): "
                                       "element at row 98, column 3 is ",
                                       std::isnan(bad) ? "" : absl::StrFormat("%g", bad))));
    EXPECT_TRUE(codec.Open(chunk, Axis::kRow, bytes, Content::kWeights).ok());
  }
}

// As bf16 it would be rounded up to 2^50.
TEST(TopkFp32, AdmitsEveryValueBelowTheLimit) {
  const float largest = std::nextafter(kMaxGradient, 0.0f);
  const std::vector<float> values = {0, largest, -largest, 0};
  const Bytes bytes = Encoded("topk:0.5:fp32", values);
  EXPECT_TRUE(OpenStatus("topk:0.5:fp32", 4, std::string(bytes.view())).ok());
  EXPECT_EQ(Decoded("topk:0.5:fp32", 4, bytes), values);
  EXPECT_FALSE(OpenStatus("topk:0.5", 4, std::string(Encoded("topk:0.5", values).view())).ok());
}

TEST(TopkFp32, SizesStayWithinATightBound) {
  for (size_t n = 1; n <= 12; ++n) {
    for (const std::string name : {"topk:0.1:fp32", "topk:0.34:fp32", "topk:0.5:raw32:fp32"}) {
      size_t largest = 0;
      for (uint32_t set = 0; set < 1u << n; ++set) {
        std::vector<float> values(n);
        for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(set >> i & 1);
        largest = std::max(largest, Encoded(name, values).size());
      }
      EXPECT_EQ(largest, Named(name).MaxEncodedSize(RowChunk(n), Axis::kRow))
          << name << " of " << n;
    }
  }
  // Pairs of an index and a value, 32 bits each.
  EXPECT_EQ(Named("topk:0.01:raw32:fp32").MaxEncodedSize(RowChunk(10000), Axis::kRow),
            12u + 8 * 100);
  EXPECT_EQ(Named("topk:0.01:fp32:tensor").MaxEncodedSize(RowChunk(10000), Axis::kRow),
            12u + 10000 / 8 + 4 * 10000);
}

TEST(TopkFp32, TraitsGiveTheExpectedBits) {
  constexpr size_t kN = size_t{1} << 20;
  TestRandom random;
  std::vector<float> values(kN);
  for (float& value : values) value = static_cast<float>(random.Next() >> 8);
  for (const char* name : {"topk:0.01:fp32", "topk:0.1:fp32", "topk:0.02:raw32:fp32"}) {
    const Codec::Traits& traits = Named(name).traits();
    EXPECT_EQ(traits.id, CodecId{32});
    EXPECT_FALSE(traits.exact || traits.fixed_size);
    const double bits = 8.0 * static_cast<double>(Encoded(name, values).size()) / kN;
    EXPECT_NEAR(traits.bits_per_element, bits, 0.01 * bits) << name;
  }
}

TEST(TopkFp32, IsNamedOnceInItsPlace) {
  for (const char* const name : kNames) EXPECT_EQ(Named(name).name(), name);
  const struct {
    const char* name;
    const char* text;
  } cases[] = {
      {"topk:fp32", "FRACTION is \"fp32\""},
      {"topk:0.1:fp32:fp32", "\"fp32\" was not expected as parameter 3"},
      {"topk:0.1:fp32:raw32", "\"raw32\" was not expected as parameter 3"},
      {"topk:0.1:sampled:fp32", "\"fp32\" was not expected as parameter 3"},
      {"topk:0.1:tensor:fp32", "\"fp32\" was not expected as parameter 3"},
      {"topk:0.1:raw32:fp32:tensor:fp32", "\"fp32\" was not expected as parameter 5"},
      {"topk:0.1:fp32:sampled:tensor", "sampled and tensor exclude each other"},
      {"topk:0.1:bf16", "\"bf16\" was not expected as parameter 2"},
      {"topk:0.1:fp16", "after FRACTION, raw32, then fp32, and then one of sampled and tensor"},
  };
  for (const auto& c : cases) {
    const absl::Status status = FindCodec(c.name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
  }
}

}  // namespace
}  // namespace eps
