// The codec of a plug-in encodes what the object encodes, keeps what it omits, and checks what it
// decodes. The object is the template's.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/memory_account.h"
#include "compression/codec.h"
#include "compression/plugin/codec_plugin.h"
#include "compression/reference_codec.h"
#include "compression/testing/codec_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

constexpr char kObject[] = "compression/plugin/template/sign.so";

const CodecPlugin& Loaded() {
  static const CodecPlugin* const plugin = *LoadCodecPlugin(kObject);
  return *plugin;
}

const Codec& TheCodec() { return **FindCodec(CodecNameOf(Loaded())); }

std::vector<float> SomeElements(const Chunk& chunk, uint64_t seed) {
  TestRandom random(seed);
  std::vector<float> elements(chunk.elements);
  for (float& x : elements) x = static_cast<float>(static_cast<int32_t>(random.Next())) * 0x1p-40F;
  return elements;
}

// Returns the elements that the object itself decodes.
std::vector<float> DecodedByObject(const Bytes& bytes, size_t n) {
  std::vector<float> elements(n);
  EXPECT_EQ(Loaded().decode(bytes.size(), bytes.data(), n, elements.data()), 0);
  return elements;
}

TEST(PluginCodecTest, TheNameDescribesTheObject) {
  const std::string name = CodecNameOf(Loaded());
  EXPECT_EQ(name, absl::StrCat("plugin:sign:", Loaded().sha256, ":", Loaded().head_bytes, ":",
                               Loaded().bytes_per_1024, ":feedback"));
  const Codec::Traits& traits = TheCodec().traits();
  EXPECT_EQ(traits.id, CodecId{33});
  EXPECT_TRUE(traits.uses_residual);
  EXPECT_FALSE(traits.fixed_size);
  EXPECT_EQ(traits.bits_per_element, Loaded().bytes_per_1024 / 128.0);
  EXPECT_TRUE(TheCodec().Ready().ok());
  const Chunk chunk = RaggedChunk();
  EXPECT_EQ(TheCodec().IndexSize(chunk), 4 * chunk.elements);
}

TEST(PluginCodecTest, EncodesWhatTheObjectEncodes) {
  for (const Chunk& chunk : {RaggedChunk(), MatrixChunk(1, 1), MatrixChunk(33, 129)}) {
    const std::vector<float> elements = SomeElements(chunk, 1);
    const Bytes bytes = EncodeChunk(TheCodec(), chunk, EncodeOptions(), elements.data());
    std::vector<uint8_t> expected(Loaded().MostBytes(chunk.elements));
    expected.resize(Loaded().encode(elements.size(), elements.data(), expected.data()));
    EXPECT_EQ(bytes.view(),
              absl::string_view(reinterpret_cast<const char*>(expected.data()), expected.size()));
    EXPECT_LE(bytes.size(), TheCodec().MaxEncodedSize(chunk, Axis::kRow));
    const auto opened = TheCodec().Open(chunk, Axis::kRow, bytes, Content::kGradient);
    ASSERT_TRUE(opened.ok()) << opened.status();
    std::vector<float> decoded(chunk.elements);
    DecodeChunk(**opened, chunk, decoded.data());
    EXPECT_EQ(decoded, DecodedByObject(bytes, chunk.elements));
    EXPECT_EQ((*opened)->bytes().view(), bytes.view());
    EXPECT_EQ((*opened)->codec(), &TheCodec());
    EXPECT_EQ((*opened)->in_place_format(), CodecId::kNone);
  }
}

TEST(PluginCodecTest, AddsElementsToASum) {
  const Chunk chunk = MatrixChunk(40, 130);
  const std::vector<float> elements = SomeElements(chunk, 2);
  const Bytes bytes = EncodeChunk(TheCodec(), chunk, EncodeOptions(), elements.data());
  const auto opened = *TheCodec().Open(chunk, Axis::kRow, bytes, Content::kGradient);
  const std::vector<float> decoded = DecodedByObject(bytes, chunk.elements);
  std::vector<float> sum(chunk.elements, 1.5F);
  ForEachTile(chunk, [&](const Tile& tile) {
    opened->Read(tile, /*accumulate=*/true, 130, &sum[tile.offset(chunk.segments[0])]);
  });
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], 1.5F + decoded[i]) << i;
}

TEST(PluginCodecTest, KeepsWhatItOmits) {
  const Chunk chunk = RaggedChunk();
  const auto reference = *NewReferenceCodec(CodecNameOf(Loaded()));
  std::vector<float> residual(chunk.elements);
  std::vector<float> expected(chunk.elements);
  for (uint64_t step = 0; step < 4; ++step) {
    const std::vector<float> elements = SomeElements(chunk, 3 + step);
    const std::vector<float> before = residual;
    EncodeOptions options;
    options.residual_or_null = residual.data();
    const Bytes bytes = EncodeChunk(TheCodec(), chunk, options, elements.data());
    EXPECT_EQ(bytes.view(), reference->Encode(chunk, Axis::kRow, elements.data(), expected.data()));
    EXPECT_EQ(residual, expected);
    const std::vector<float> sent = DecodedByObject(bytes, chunk.elements);
    for (size_t i = 0; i < residual.size(); ++i) {
      ASSERT_EQ(residual[i], (elements[i] + before[i]) - sent[i]) << i;
    }
  }
}

TEST(PluginCodecTest, RefusesWhatTheObjectRefuses) {
  const Chunk chunk = MatrixChunk(40, 130);
  const auto status = [&](size_t size) {
    const std::string bytes(size, '\0');
    return TheCodec().Open(chunk, Axis::kRow, Bytes::CopyOf(bytes), Content::kGradient).status();
  };
  EXPECT_EQ(status(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status(1).message()), HasSubstr("its decoder refuses the 1 bytes"));
  const uint64_t most = Loaded().MostBytes(chunk.elements);
  EXPECT_THAT(std::string(status(most + 1).message()),
              HasSubstr(absl::StrCat("expected at most ", most, " bytes, found ", most + 1)));
}

TEST(PluginCodecTest, NamesInadmissibleGradients) {
  const Chunk chunk = RaggedChunk();
  for (const float bad : {INFINITY, -INFINITY, NAN, 0x1p60F}) {
    std::vector<float> elements = SomeElements(chunk, 9);
    elements[3 * 200 + 7] = bad;
    const Bytes bytes = EncodeChunk(TheCodec(), chunk, EncodeOptions(), elements.data());
    const absl::Status status =
        TheCodec().Open(chunk, Axis::kRow, bytes, Content::kGradient).status();
    EXPECT_TRUE(InadmissibleElement(status).has_value()) << bad << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("codec plugin:sign:"));
  }
}

TEST(PluginCodecTest, ChargesWhatItDecodes) {
  const Chunk chunk = MatrixChunk(40, 130);
  MemoryAccount account;
  const std::vector<float> elements = SomeElements(chunk, 5);
  EncodeOptions options;
  options.account = &account;
  Bytes bytes = EncodeChunk(TheCodec(), chunk, options, elements.data());
  const uint64_t encoded = account.live_bytes();
  const auto opened = *TheCodec().Open(chunk, Axis::kRow, std::move(bytes), Content::kGradient);
  EXPECT_EQ(account.live_bytes(), encoded + TheCodec().IndexSize(chunk));
}

TEST(PluginCodecTest, AMissingObjectIsNamed) {
  CodecDescription other = Loaded();
  other.sha256 = std::string(64, 'a');
  const Codec& codec = **FindCodec(CodecNameOf(other));
  const Chunk chunk = MatrixChunk(1, 1);
  EXPECT_GT(codec.MaxEncodedSize(chunk, Axis::kRow), 0U);
  for (const absl::Status& status :
       {codec.Ready(), codec.Open(chunk, Axis::kRow, Bytes(), Content::kGradient).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("loaded: sign (SHA-256 ", Loaded().sha256, ")")));
  }
}

TEST(PluginCodecTest, AnObjectDescribesItself) {
  CodecDescription other = Loaded();
  other.bytes_per_1024 += 1;
  const absl::Status status = (*FindCodec(CodecNameOf(other)))->Ready();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("and it describes itself as plugin:sign:"));
}

}  // namespace
}  // namespace eps
