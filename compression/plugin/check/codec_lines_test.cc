// The parent of a codec's check believes no description that its child would not write.

#include "compression/plugin/check/codec_lines.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::string Begun() { return absl::StrCat("sha256 ", std::string(64, 'a'), "\nname x\n"); }

std::string Codec(const std::string& name, char digit, const std::string& rest) {
  return absl::StrCat("codec plugin:", name, ":", std::string(64, digit), ":", rest, "\n");
}

std::string AllPassed() {
  std::string lines;
  for (const std::string& name : CodecCheckNames()) {
    absl::StrAppend(&lines, "begin ", name, "\npassed ", name, "\n");
  }
  return lines;
}

TEST(CodecLinesTest, ReadsAReport) {
  CodecLineReader reader;
  ASSERT_TRUE(reader.Take(Begun() + Codec("x", 'a', "4:144:feedback") + "described\n").ok());
  ASSERT_TRUE(reader.Take(AllPassed() + "speed 1000 150\nround 1 2 4\nend\n").ok());
  const auto report = reader.Finish("ended", "ended");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->ok());
  EXPECT_EQ(CodecNameOf(*report),
            absl::StrCat("plugin:x:", std::string(64, 'a'), ":4:144:feedback"));
  ASSERT_TRUE(report->speed.has_value());
  EXPECT_EQ(report->speed->encoded_bytes, 150U);
  EXPECT_DOUBLE_EQ(report->speed->encode.median, 4000 / 1e9);
  EXPECT_DOUBLE_EQ(report->speed->decode.median, 4000 / 2e9);
  EXPECT_DOUBLE_EQ(report->speed->copy.median, 4000 / 4e9);
}

TEST(CodecLinesTest, RefusesOtherDescriptions) {
  for (const std::string& line :
       {Codec("y", 'a', "4:144"), Codec("x", 'b', "4:144"), Codec("x", 'a', "4"),
        Codec("x", 'a', "4:0"), Codec("x", 'a', "99999:1"), Codec("x", 'a', "4:144:back"),
        std::string("codec fp32\n"), std::string("field f\n")}) {
    CodecLineReader reader;
    EXPECT_FALSE(reader.Take(Begun() + line).ok()) << line;
  }
}

TEST(CodecLinesTest, AnUndescribedCodecIsInvalid) {
  CodecLineReader reader;
  ASSERT_TRUE(reader.Take(Begun() + "described\nend\n").ok());
  EXPECT_EQ(reader.Finish("ended", "ended").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eps
