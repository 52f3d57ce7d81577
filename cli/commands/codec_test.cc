#include "cli/commands/codec.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/exit_code.h"
#include "compression/codec.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

class CodecCommandTest : public testing::Test {
 protected:
  CodecCommandTest() {
    root_ =
        absl::StrCat(testing::TempDir(), "/codec-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~CodecCommandTest() override { fs::remove_all(root_); }

  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }

  std::string Write(const std::string& name, const std::vector<float>& values) const {
    std::ofstream file(Path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(4 * values.size()));
    return Path(name);
  }

  std::vector<float> Read(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::vector<float> values(bytes.size() / 4);
    bytes.copy(reinterpret_cast<char*>(values.data()), 4 * values.size());
    return values;
  }

  // Returns the options for a round trip of the input file.
  RoundtripOptions Options(const std::string& codec, uint32_t rows, uint32_t cols) const {
    RoundtripOptions options;
    options.codec = codec;
    options.rows = rows;
    options.cols = cols;
    options.in = Path("in.f32");
    options.out = Path("out.f32");
    return options;
  }

  std::string root_;
};

std::vector<float> Waves(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const float x = static_cast<float>(i);
    values[i] = std::sin(x * 0.37f) * std::exp2(static_cast<float>(i % 23) - 11.0f);
  }
  return values;
}

// Returns the decoded values of the whole tensor as one chunk: the expected content of the file.
std::vector<float> InOneChunk(const std::string& name, Axis axis, uint32_t rows, uint32_t cols,
                              const std::vector<float>& values) {
  const Codec& codec = **FindCodec(name);
  Segment segment;
  segment.rows = rows;
  segment.cols = cols;
  Chunk chunk;
  chunk.segments = {segment};
  chunk.elements = segment.elements();
  EncodeOptions options;
  options.axis = axis;
  const auto opened =
      codec.Open(chunk, axis, EncodeChunk(codec, chunk, options, values.data()), Content::kWeights);
  EXPECT_TRUE(opened.ok()) << opened.status();
  std::vector<float> decoded(values.size());
  DecodeChunk(**opened, chunk, decoded.data());
  return decoded;
}

TEST_F(CodecCommandTest, ListsEveryCodecForPeopleAndPrograms) {
  const std::vector<std::string> lines = absl::StrSplit(CodecTableText(), '\n', absl::SkipEmpty());
  std::vector<std::string> names = CodecNames();
  // Those of shared objects are not listed.
  ASSERT_TRUE(absl::StartsWith(names.back(), "plugin:"));
  names.pop_back();
  ASSERT_EQ(lines.size(), names.size() + 1);
  EXPECT_TRUE(absl::StartsWith(lines[0], "number  name"));
  const auto array = nlohmann::json::parse(CodecTableJson());
  ASSERT_EQ(array.size(), names.size());
  int before = 0;
  for (size_t i = 0; i < array.size(); ++i) {
    const auto& object = array[i];
    const std::string name = object["name"];
    const std::string written = absl::StrCat(name, object["parameters"].get<std::string>());
    EXPECT_EQ(written, names[i]);
    EXPECT_GT(object["number"].get<int>(), before);
    before = object["number"];
    ASSERT_FALSE(object["examples"].empty());
    const auto codec = FindCodec(object["examples"][0].get<std::string>());
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ(static_cast<int>((*codec)->traits().id), before);
    EXPECT_EQ((*codec)->traits().bits_per_element, object["bits_per_element"].get<double>());
    EXPECT_EQ((*codec)->traits().block, object["block"].get<uint32_t>());
    EXPECT_TRUE(absl::StrContains(lines[i + 1], written)) << lines[i + 1];
    EXPECT_TRUE(absl::StartsWith(lines[i + 1], absl::StrCat(before, " "))) << lines[i + 1];
  }
}

TEST_F(CodecCommandTest, WritesTheDecodedValues) {
  const std::vector<float> values = Waves(70 * 200);
  Write("in.f32", values);
  for (const std::string& name : CodecExamples()) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      SCOPED_TRACE(absl::StrCat(name, axis == Axis::kRow ? ", row" : ", column"));
      RoundtripOptions options = Options(name, 70, 200);
      options.axis = axis;
      const auto summary = RoundtripFile(options);
      ASSERT_TRUE(summary.ok()) << summary.status();
      EXPECT_EQ(summary->elements, values.size());
      EXPECT_EQ(summary->chunks, 1u);
      EXPECT_EQ(Read("out.f32"), InOneChunk(name, axis, 70, 200, values));
    }
  }
}

TEST_F(CodecCommandTest, PanelsDoNotChangeFixedSizeCodecs) {
  const std::vector<float> values = Waves(200 * 33);
  Write("in.f32", values);
  for (const std::string& name : CodecExamples()) {
    if (!(*FindCodec(name))->traits().fixed_size) continue;
    SCOPED_TRACE(name);
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      RoundtripOptions options = Options(name, 200, 33);
      options.axis = axis;
      options.chunk_elements = 70 * 33;  // 64 rows
      const auto summary = RoundtripFile(options);
      ASSERT_TRUE(summary.ok()) << summary.status();
      EXPECT_EQ(summary->chunks, 4u);
      EXPECT_EQ(Read("out.f32"), InOneChunk(name, axis, 200, 33, values));
    }
  }
}

TEST_F(CodecCommandTest, SelectingCodecsTakeWholeTensors) {
  std::vector<float> values(64 * 100, 0.0f);
  for (size_t i = 0; i < 1000; ++i) values[i] = 1.0f + static_cast<float>(i);
  Write("in.f32", values);
  for (const std::string& name : CodecExamples()) {
    if ((*FindCodec(name))->traits().fixed_size) continue;
    SCOPED_TRACE(name);
    RoundtripOptions options = Options(name, 64, 100);
    ASSERT_EQ(RoundtripFile(options)->chunks, 1u);
    EXPECT_EQ(Read("out.f32"), InOneChunk(name, Axis::kRow, 64, 100, values));
    options.chunk_elements = 1;  // a chunk still has the 32 rows of a panel
    ASSERT_EQ(RoundtripFile(options)->chunks, 2u);
    std::vector<float> first(values.begin(), values.begin() + 3200);
    first = InOneChunk(name, Axis::kRow, 32, 100, first);
    first.resize(values.size(), 0.0f);
    EXPECT_EQ(Read("out.f32"), first);
  }
}

TEST_F(CodecCommandTest, RefusesBadInputAndLeavesNoFile) {
  Write("in.f32", Waves(12));
  fs::create_hard_link(Path("in.f32"), Path("same.f32"));
  struct Wrong {
    RoundtripOptions options;
    ExitCode code;
    std::vector<std::string> says;
  };
  std::vector<Wrong> cases = {
      {Options("fp23", 3, 4), ExitCode::kUsage, {"\"fp23\"", "known are fp32, bf16"}},
      {Options("fp32", 3, 5), ExitCode::kDataInvalid, {"in.f32", "expected 60 bytes", "found 48"}},
      {Options("fp32", 2, 5), ExitCode::kDataInvalid, {"expected 40 bytes", "found 48"}},
      {Options("fp32", 3, 4), ExitCode::kNoInput, {"nothing.f32"}},
      {Options("fp32", 3, 4), ExitCode::kUsage, {"not a regular file"}},
      {Options("fp32", 3, 4), ExitCode::kUsage, {"same.f32", "is the input itself"}},
      {Options("fp32", 3, 4), ExitCode::kNoInput, {"nowhere/out.f32"}},
  };
  cases[3].options.in = Path("nothing.f32");
  cases[4].options.in = root_;
  cases[5].options.out = Path("same.f32");
  cases[6].options.out = Path("nowhere/out.f32");
  for (const Wrong& wrong : cases) {
    const absl::Status status = RoundtripFile(wrong.options).status();
    EXPECT_EQ(ExitCodeOf(status), wrong.code) << status;
    for (const std::string& says : wrong.says) {
      EXPECT_TRUE(absl::StrContains(status.message(), says)) << says << ": " << status;
    }
    EXPECT_FALSE(fs::exists(Path("out.f32")));
  }
  EXPECT_EQ(Read("in.f32"), Waves(12));
}

TEST_F(CodecCommandTest, ReadsItsArguments) {
  const std::vector<float> values = Waves(35);
  const std::string in = Write("in.f32", values);
  const std::string out = Path("out.f32");
  ASSERT_TRUE(
      RunCodec({"roundtrip", "--codec=fp8_e4m3", "--axis=column", "--shape=5x7", in, out}).ok());
  EXPECT_EQ(Read("out.f32"), InOneChunk("fp8_e4m3", Axis::kColumn, 5, 7, values));
  EXPECT_TRUE(RunCodec({"list"}).ok());
  EXPECT_TRUE(RunCodec({"list", "--json"}).ok());
  EXPECT_TRUE(RunCodec({"--help"}).ok());
  struct Wrong {
    std::vector<std::string> arguments;
    const char* says;
  };
  const std::string codec = "--codec=fp32";
  for (const Wrong& wrong : std::vector<Wrong>{
           {{}, "eps codec needs list, roundtrip"},
           {{"lits"}, "did you mean list?"},
           {{"roundtrip", "--shape=5x7", in, out}, "--codec"},
           {{"roundtrip", codec, in, out}, "--shape"},
           {{"roundtrip", codec, "--shape=5x7", in}, "OUT"},
           {{"roundtrip", codec, "--shape=5", in, out}, "--shape=5: expected ROWSxCOLS"},
           {{"roundtrip", codec, "--shape=5x", in, out}, "--shape=5x: "},
           {{"roundtrip", codec, "--shape=0x7", in, out}, "--shape=0x7: "},
           {{"roundtrip", codec, "--shape=5x7x1", in, out}, "--shape=5x7x1: "},
           {{"roundtrip", codec, "--shape=-5x7", in, out}, "--shape=-5x7: "},
           {{"roundtrip", codec, "--shape=1x8388609", in, out}, "1 to 8388608 columns"},
           {{"roundtrip", codec, "--axis=diagonal", "--shape=5x7", in, out}, "--axis=diagonal"}}) {
    const absl::Status status = RunCodec(wrong.arguments);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), wrong.says)) << status;
  }
}

}  // namespace
}  // namespace eps
