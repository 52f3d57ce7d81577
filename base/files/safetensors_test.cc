#include "base/files/safetensors.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/numerics/small_floats.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::string TempPath(const std::string& name) { return testing::TempDir() + "/" + name; }

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A file with this header (its length is put before it) and `data_bytes` of data.
std::string FileOf(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file + header + std::string(data_bytes, '\1');
}

SafetensorsEntry Entry(const std::string& name, std::vector<uint64_t> shape,
                       const std::string& dtype = "F32") {
  SafetensorsEntry entry;
  entry.dtype = dtype;
  entry.name = name;
  entry.shape = std::move(shape);
  return entry;
}

TEST(SafetensorsTest, ReadsBackPiecesWrittenInAnyOrder) {
  const std::string path = TempPath("round_trip.safetensors");
  auto writer = SafetensorsWriter::Create(path, {Entry("b", {2, 3}), Entry("a", {4})});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(1, 0, {7, 8, 9, 10}).ok());
  ASSERT_TRUE((*writer)->Write(0, 4, {5, 6}).ok());
  ASSERT_TRUE((*writer)->Write(0, 0, {1, 2, 3, 4}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());

  auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->metadata().at("format"), "pt");
  ASSERT_EQ((*reader)->entries().size(), 2u);
  EXPECT_EQ((*reader)->entries()[0].name, "b") << "the order given is the order in the file";
  float values[6];
  ASSERT_TRUE((*reader)->Read(**(*reader)->Find("b"), 0, 6, values).ok());
  EXPECT_EQ(std::vector<float>(values, values + 6), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  ASSERT_TRUE((*reader)->Read(**(*reader)->Find("a"), 1, 2, values).ok());
  EXPECT_EQ(values[0], 8);
  EXPECT_EQ(values[1], 9);
  EXPECT_FALSE((*reader)->Read(**(*reader)->Find("a"), 3, 2, values).ok());
  EXPECT_EQ((*reader)->Find("c").status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, WritesTheFormatByteForByte) {
  const std::string path = TempPath("golden.safetensors");
  auto writer = SafetensorsWriter::Create(path, {Entry("w", {1, 1})});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(0, 0, {1.0f}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(ReadFile(path), std::string(reinterpret_cast<const char*>(&length), 8) + header +
                                std::string("\x00\x00\x80\x3f", 4));
  EXPECT_EQ((*writer)->file_bytes(), ReadFile(path).size());
}

TEST(SafetensorsTest, FinishNamesATensorThatIsNotComplete) {
  auto writer = SafetensorsWriter::Create(TempPath("partial.safetensors"),
                                          {Entry("whole", {1}), Entry("half", {4})});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Write(0, 0, {1.0f}).ok());
  ASSERT_TRUE((*writer)->Write(1, 0, {1.0f, 2.0f}).ok());
  const absl::Status status = (*writer)->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "\"half\": 2 of 4")) << status;
}

TEST(SafetensorsTest, WriterRefusesOverrunsAndRepeatedNames) {
  auto writer = SafetensorsWriter::Create(TempPath("beyond.safetensors"), {Entry("t", {2})});
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->Write(0, 1, {1.0f, 2.0f}).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*writer)->Write(0, UINT64_MAX, {1.0f}).code(), absl::StatusCode::kOutOfRange);
  EXPECT_FALSE(SafetensorsWriter::Create(TempPath("x"), {Entry("t", {1}), Entry("t", {1})}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(TempPath("x"), {Entry("__metadata__", {1})}).ok());
  EXPECT_FALSE(
      SafetensorsWriter::Create(TempPath("x"), {Entry("t", {UINT64_MAX, UINT64_MAX})}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(TempPath("x"), {Entry("t", {1}, "I32")}).ok());
}

TEST(SafetensorsTest, RoundsNarrowFloatsAndRefusesOverflow) {
  const std::string path = TempPath("narrow.safetensors");
  auto writer = SafetensorsWriter::Create(
      path, {Entry("h", {3}, "F16"), Entry("b", {2}, "BF16"), Entry("f", {1})});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(2, 0, {5.5f}).ok());
  ASSERT_TRUE((*writer)->Write(0, 1, {65504.0f, INFINITY}).ok());
  ASSERT_TRUE((*writer)->Write(0, 0, {1.0f / 3}).ok());
  ASSERT_TRUE((*writer)->Write(1, 0, {1.0f / 3, 1e38f}).ok());
  for (const float value : {65520.0f, -1e6f}) {
    const absl::Status status = (*writer)->Write(0, 1, {1.0f, value});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "\"h\": element 2 is ")) << status;
  }
  EXPECT_FALSE((*writer)->Write(1, 0, {3.4e38f}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto values_of = [&](const char* name) {
    const SafetensorsEntry* entry = *(*reader)->Find(name);
    std::vector<float> values(entry->elements());
    EXPECT_TRUE((*reader)->Read(*entry, 0, values.size(), values.data()).ok());
    return values;
  };
  EXPECT_EQ(values_of("h"), (std::vector<float>{0x1.554p-2f, 65504.0f, INFINITY}));
  EXPECT_EQ(values_of("b"), (std::vector<float>{0x1.56p-2f, 0x1.2cp126f}));
  EXPECT_EQ(values_of("f"), std::vector<float>{5.5f});
}

TEST(SafetensorsTest, RefusesHostileFilesAndNamesTheFault) {
  const std::string kOk = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  struct Case {
    std::string name;
    std::string file;
    std::string says;
  };
  const std::string huge_length = std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "{}";
  const std::vector<Case> cases = {
      {"empty", "", "too short"},
      {"seven bytes", "1234567", "too short"},
      {"header length of 2^64-1", huge_length, "at most 100000000"},
      {"header beyond the file", std::string("\x10\0\0\0\0\0\0\0{}", 10), "16 bytes in a file"},
      {"no JSON", FileOf("not json", 0), "not JSON at its byte"},
      {"cut JSON", FileOf(kOk.substr(0, 20), 8), "not JSON"},
      {"text after the header", FileOf(kOk + "x", 8), "not JSON"},
      {"a list", FileOf("[1]", 0), "unexpected a list"},
      {"deep", FileOf(std::string(1'000'000, '['), 0), "unexpected a list"},
      {"deep in a tensor", FileOf(R"({"t":{"shape":[[[)", 0), "unexpected a list"},
      {"object in an object", FileOf(R"({"t":{"dtype":{"a":1}}})", 0), "unexpected an object"},
      {"name twice", FileOf(kOk.substr(0, kOk.size() - 1) + "," + kOk.substr(1), 8), "twice"},
      {"field twice", FileOf(R"({"t":{"dtype":"F32","dtype":"F32"}})", 0), "dtype stands twice"},
      {"metadata twice", FileOf(R"({"__metadata__":{},"__metadata__":{}})", 0), "twice"},
      {"unknown field", FileOf(R"({"t":{"dtipe":"F32"}})", 0), "\"dtipe\""},
      {"missing field", FileOf(R"({"t":{"dtype":"F32","shape":[2]}})", 8), "is missing"},
      {"one offset", FileOf(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8),
       "must be two"},
      {"three offsets", FileOf(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8),
       "more than two"},
      {"backwards", FileOf(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
       "end before they begin"},
      {"negative", FileOf(R"({"t":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
       "negative"},
      {"fraction", FileOf(R"({"t":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8),
       "no integer"},
      {"beyond 64 bits", FileOf(R"({"t":{"dtype":"F32","shape":[18446744073709551616]}})", 8),
       "no integer"},
      {"null", FileOf(R"({"t":null})", 0), "unexpected null"},
      {"dtype", FileOf(R"({"t":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8), "\"F31\""},
      {"overflow",
       FileOf(R"({"t":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0),
       "overflows"},
      {"overflow in the shape",
       FileOf(R"({"t":{"dtype":"U8","shape":[4294967296,4294967297],"data_offsets":[0,8]}})", 8),
       "overflows"},
      {"wrong size", FileOf(R"({"t":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
       "is 12 bytes, data_offsets say 8"},
      {"outside", FileOf(kOk, 7), "the file has 7"},
      {"hole at the end", FileOf(kOk, 9), "cover 8 bytes of data, the file has 9"},
      {"hole before", FileOf(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
       "expected 0"},
      {"overlap",
       FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
              R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
              12),
       "\"b\": starts at byte 4"},
      {"rank", FileOf(R"({"t":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1]}})", 1), "dimensions"},
      {"broken UTF-8", FileOf("{\"\xff\xfe\":{}}", 0), "not JSON"},
  };
  for (const Case& c : cases) {
    const std::string path = TempPath("hostile.safetensors");
    WriteFile(path, c.file);
    const absl::Status status = SafetensorsReader::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.name << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.name << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path)) << c.name << ": " << status;
    EXPECT_LT(status.message().size(), 1024u) << c.name;
  }
}

TEST(SafetensorsTest, EveryCutOfAGoodFileIsRefused) {
  const std::string good = FileOf(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )", 8);
  const std::string path = TempPath("cut.safetensors");
  WriteFile(path, good);
  ASSERT_TRUE(SafetensorsReader::Open(path).ok());
  for (size_t length = 0; length < good.size(); ++length) {
    WriteFile(path, good.substr(0, length));
    EXPECT_FALSE(SafetensorsReader::Open(path).ok()) << length;
  }
}

TEST(SafetensorsTest, AcceptsEmptyTensorsScalarsAndAnyOrder) {
  const std::string path = TempPath("odd.safetensors");
  WriteFile(path, FileOf(R"({"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
                         R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},)"
                         R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                         8));
  auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->entries()[0].name, "a");
  EXPECT_EQ((*(*reader)->Find("none"))->elements(), 0u);
  EXPECT_EQ((*(*reader)->Find("b"))->elements(), 1u);
  float value;
  const absl::Status status = (*reader)->Read(**(*reader)->Find("a"), 0, 1, &value);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StrContains(status.message(), "\"a\" is U8")) << status;
}

// The value of a half by its definition, in double.
double HalfByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(SafetensorsTest, ReadsEveryHalfAndBfloatExactly) {
  std::string data;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    data += static_cast<char>(bits & 255);
    data += static_cast<char>(bits >> 8);
  }
  const std::string path = TempPath("halves.safetensors");
  std::string file =
      FileOf(R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]},)"
             R"("b":{"dtype":"BF16","shape":[256,256],"data_offsets":[131072,262144]}})",
             0);
  WriteFile(path, file + data + data);
  auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> halves(65536), bfloats(65536);
  ASSERT_TRUE((*reader)->Read(**(*reader)->Find("h"), 0, 65536, halves.data()).ok());
  ASSERT_TRUE((*reader)->Read(**(*reader)->Find("b"), 0, 65536, bfloats.data()).ok());
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = HalfByDefinition(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(halves[bits])) << bits;
    } else {
      EXPECT_EQ(halves[bits], expected) << bits;
      EXPECT_EQ(std::signbit(halves[bits]), std::signbit(expected)) << bits;
    }
    uint32_t wide;
    std::memcpy(&wide, &bfloats[bits], sizeof(wide));
    EXPECT_EQ(wide, bits << 16);
  }
}

TEST(SmallFloatsTest, EveryValueIsItsOwnNearest) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    const float half = FloatFromF16(bits);
    const float bfloat = FloatFromBf16(bits);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(FloatFromF16(F16FromFloat(half)))) << i;
    } else {
      EXPECT_EQ(F16FromFloat(half), bits);
    }
    if (std::isnan(bfloat)) {
      EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(bfloat)))) << i;
    } else {
      EXPECT_EQ(Bf16FromFloat(bfloat), bits);
    }
  }
}

TEST(SmallFloatsTest, RoundsToNearestAndTiesToEven) {
  struct Format {
    uint16_t infinity;
    float (*from)(uint16_t);
    uint16_t (*to)(float);
  };
  for (const Format& f :
       {Format{0x7c00, FloatFromF16, F16FromFloat}, Format{0x7f80, FloatFromBf16, Bf16FromFloat}}) {
    for (uint16_t low = 0; low + 1 < f.infinity; ++low) {
      const uint16_t high = static_cast<uint16_t>(low + 1);
      const float middle =
          static_cast<float>((static_cast<double>(f.from(low)) + f.from(high)) / 2);
      const uint16_t even = (low & 1) == 0 ? low : high;
      for (const uint16_t sign : {0, 0x8000}) {
        const auto round = [&](float value) { return f.to(sign == 0 ? value : -value) ^ sign; };
        ASSERT_EQ(round(middle), even) << low;
        ASSERT_EQ(round(std::nextafterf(middle, 0)), low);
        ASSERT_EQ(round(std::nextafterf(middle, INFINITY)), high);
      }
    }
  }
  EXPECT_EQ(F16FromFloat(std::nextafterf(65520.0f, 0)), 0x7bff);
  EXPECT_EQ(F16FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(F16FromFloat(-1e30f), 0xfc00);
  EXPECT_EQ(F16FromFloat(1e-45f), 0);
  EXPECT_EQ(Bf16FromFloat(3.4e38f), 0x7f80);
}

TEST(SafetensorsTest, AMissingFileIsNotFound) {
  const absl::Status status = SafetensorsReader::Open(TempPath("nowhere/x")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsReader::Open(testing::TempDir()).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace eps
