// Objects that are no codecs are refused with the reason, and no code of an unexpected one runs.
// The name of a codec in a job describes it completely.

#include "compression/plugin/codec_plugin.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/plugin/names.h"
#include "compression/plugin/testing/objects.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// An object, and words of the reason for which it is refused.
struct Refused {
  const char* bad;
  const char* words;
};

class RefusedCodecTest : public testing::TestWithParam<Refused> {};

TEST_P(RefusedCodecTest, SaysWhy) {
  const std::string path = BadCodec(GetParam().bad);
  const absl::Status status = LoadCodecPlugin(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(path + ": "), HasSubstr(GetParam().words)));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedCodecTest,
    testing::Values(Refused{"symbol", "exports no function eps_codec_v1"},
                    Refused{"null", "eps_codec_v1() returned null"},
                    Refused{"version", "has version 2 of the interface; expected 1"},
                    Refused{"name", "the name of the codec is \"bad-codec\""},
                    Refused{"head", "head_bytes is 4097; expected 0 to 4096"},
                    Refused{"no_bytes", "bytes_per_1024 is 0; expected 1 to 8192"},
                    Refused{"many_bytes", "bytes_per_1024 is 8193; expected 1 to 8192"},
                    Refused{"feedback", "error_feedback is 2; expected 0 to 1"},
                    Refused{"no_encode", "encode is null"}, Refused{"no_decode", "decode is null"}),
    [](const auto& info) { return std::string(info.param.bad); });

const CodecPlugin* Load(const std::string& path) {
  const auto plugin = LoadCodecPlugin(path);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  return *plugin;
}

std::vector<std::string> PiecesOf(const std::string& name) {
  const std::vector<std::string> pieces = absl::StrSplit(name, ':');
  EXPECT_EQ(pieces[0], kPluginCodec);
  return {pieces.begin() + 1, pieces.end()};
}

TEST(CodecPluginTest, LoadsACodecOnce) {
  const CodecPlugin* const plugin = Load(kGoodCodec);
  EXPECT_EQ(plugin->name, "sign");
  EXPECT_EQ(plugin->path, kGoodCodec);
  EXPECT_EQ(plugin->sha256.size(), 64U);
  EXPECT_EQ(plugin->head_bytes, 4U);
  EXPECT_EQ(plugin->bytes_per_1024, 144U);
  EXPECT_TRUE(plugin->error_feedback);
  EXPECT_EQ(Load(kGoodCodec), plugin);
  EXPECT_EQ(*FindLoadedCodec(*plugin), plugin);
}

TEST(CodecPluginTest, TheTemplateSendsScaledSigns) {
  const CodecPlugin* const plugin = Load(kGoodCodec);
  const float elements[] = {1, -3, 0, 4, -2, 8, -5, 1, -12};  // a mean magnitude of 4
  uint8_t bytes[8] = {};
  ASSERT_EQ(plugin->encode(9, elements, bytes), 6U);
  EXPECT_THAT(std::vector<uint8_t>(bytes, bytes + 6),
              testing::ElementsAre(0x00, 0x00, 0x80, 0x40, 0b01010010, 0b00000001));
  float decoded[9] = {};
  ASSERT_EQ(plugin->decode(6, bytes, 9, decoded), 0);
  EXPECT_THAT(decoded, testing::ElementsAre(4, -4, 4, 4, -4, 4, -4, 4, -4));
  EXPECT_NE(plugin->decode(7, bytes, 9, decoded), 0);
}

TEST(CodecPluginTest, NoCodeOfAnotherFileRuns) {
  const std::string trace = testing::TempDir() + "/codec_trace";
  std::remove(trace.c_str());
  setenv("EPS_TRACE", trace.c_str(), /*overwrite=*/1);
  const std::string expected(64, 'a');
  const absl::Status status = LoadCodecPlugin(BadCodec("constructor"), expected).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(expected));
  EXPECT_NE(access(trace.c_str(), F_OK), 0) << "its constructor ran";
  // The expected file does run it: the trace works.
  const CodecPlugin* const plugin = Load(BadCodec("constructor"));
  EXPECT_EQ(access(trace.c_str(), F_OK), 0);
  EXPECT_TRUE(LoadCodecPlugin(BadCodec("constructor"), plugin->sha256).ok());
}

TEST(CodecPluginTest, TheNameDescribesTheCodec) {
  CodecDescription codec;
  codec.name = "my_codec";
  codec.sha256 = std::string(64, '7');
  codec.head_bytes = 12;
  codec.bytes_per_1024 = 100;
  for (const bool feedback : {false, true}) {
    codec.error_feedback = feedback;
    const std::string name = CodecNameOf(codec);
    EXPECT_EQ(name,
              "plugin:my_codec:" + codec.sha256 + (feedback ? ":12:100:feedback" : ":12:100"));
    const auto parsed = ParseCodecName(PiecesOf(name));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, codec);
  }
}

TEST(CodecPluginTest, OtherNamesAreRefused) {
  const std::string sha256(64, '7');
  for (const std::vector<std::string>& pieces :
       std::vector<std::vector<std::string>>{{},
                                             {"x", sha256, "0"},
                                             {"X", sha256, "0", "1"},
                                             {"x", sha256.substr(1), "0", "1"},
                                             {"x", sha256, "-1", "1"},
                                             {"x", sha256, "4097", "1"},
                                             {"x", sha256, "0", "0"},
                                             {"x", sha256, "0", "8193"},
                                             {"x", sha256, "0", "1", "back"},
                                             {"x", sha256, "0", "1", "feedback", ""}}) {
    const absl::Status status = ParseCodecName(pieces).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected NAME:SHA256:HEAD_BYTES"));
  }
}

TEST(CodecPluginTest, SizesAreRoundedUp) {
  CodecDescription codec;
  codec.head_bytes = 3;
  codec.bytes_per_1024 = 144;
  EXPECT_EQ(codec.MostBytes(0), 3U);
  EXPECT_EQ(codec.MostBytes(1), 3U + 1);
  EXPECT_EQ(codec.MostBytes(1024), 3U + 144);
  EXPECT_EQ(codec.MostBytes(1025), 3U + 144 + 1);
  EXPECT_EQ(codec.MostBytes(uint64_t{1} << 40), 3U + (uint64_t{144} << 30));
}

TEST(CodecPluginTest, OnlyTheDescribedObjectIsUsed) {
  CodecDescription codec = *Load(kGoodCodec);
  const std::string name = CodecNameOf(codec);
  EXPECT_TRUE(LoadCodecOf(name, kGoodCodec).ok());
  EXPECT_TRUE(LoadCodecOf("fp32", "").ok());
  EXPECT_EQ(LoadCodecOf(name, "").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(LoadCodecOf(name, BadCodec("nothing")).code(), absl::StatusCode::kFailedPrecondition);
  codec.head_bytes = 5;
  EXPECT_EQ(FindLoadedCodec(codec).status().code(), absl::StatusCode::kInvalidArgument);
  codec.sha256 = std::string(64, '0');
  const absl::Status gone = FindLoadedCodec(codec).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("servers.trust_plugins=true"));
}

}  // namespace
}  // namespace eps
