// The parent of a check believes nothing that its child says.

#include "optimizer/plugin/check/report_lines.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

std::string Described() {
  return absl::StrCat("sha256 ", std::string(64, 'a'), "\nname x\nfield f\nparameter p 1 0 2\n",
                      "described\n");
}

std::string AllPassed() {
  std::string lines;
  for (const std::string& name : PluginCheckNames()) {
    absl::StrAppend(&lines, "begin ", name, "\nat work\npassed ", name, "\n");
  }
  return lines;
}

TEST(ReportLinesTest, ReadsAReportInAnyPieces) {
  const std::string lines =
      Described() + AllPassed() + "speed 1000 20\nround 1 2\nround 2 4\nround 4 1\nend\n";
  for (const size_t size : {size_t{1}, size_t{7}, lines.size()}) {
    ReportReader reader;
    for (size_t at = 0; at < lines.size(); at += size) {
      ASSERT_TRUE(reader.Take(lines.substr(at, size)).ok());
    }
    const auto report = reader.Finish("ended", "ended");
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok());
    EXPECT_EQ(report->parameters[0].most, 2);
    ASSERT_TRUE(report->speed.has_value());
    EXPECT_DOUBLE_EQ(report->speed->update.median, 1000 * 20 / 2.0 / 1e9);
    EXPECT_DOUBLE_EQ(report->speed->plain.least, 1000 * 20 / 4.0 / 1e9);
    EXPECT_DOUBLE_EQ(report->speed->plain.most, 1000 * 20 / 1.0 / 1e9);
    EXPECT_DOUBLE_EQ(report->speed->ratio.least, 0.25);
    EXPECT_DOUBLE_EQ(report->speed->ratio.median, 2);
  }
}

TEST(ReportLinesTest, RefusesOtherLines) {
  const std::string begun = Described() + "begin bounds\n";
  for (const std::string& lines : {std::string("hello\n"),
                                   std::string("described\n"),
                                   std::string("error 0 x\n"),
                                   std::string("error 99 x\n"),
                                   std::string("sha256 abc\n"),
                                   std::string("name a/b\n"),
                                   Described() + "name y\n",
                                   Described() + "error 3 x\n",
                                   Described() + "begin splits\n",
                                   Described() + "begin nothing\n",
                                   Described() + "passed bounds\n",
                                   Described() + "at x\n",
                                   begun + "begin splits\n",
                                   begun + "begin bounds\n",
                                   begun + "passed splits\n",
                                   begun + "end\n",
                                   begun + "passed bounds\nbegin bounds\n",
                                   Described() + "round 1 1\n",
                                   Described() + "speed 1 20\nround 0 1\n",
                                   Described() + "speed 1 20\nround 1 nan\n",
                                   Described() + "speed 1 20\nspeed 1 20\n",
                                   Described() + "end\nend\n",
                                   std::string(kMaxReportLine, 'x')}) {
    ReportReader reader;
    EXPECT_FALSE(reader.Take(lines).ok()) << lines;
  }
}

TEST(ReportLinesTest, RefusesAFlood) {
  ReportReader reader;
  ASSERT_TRUE(reader.Take(Described() + "begin bounds\n").ok());
  absl::Status status;
  for (size_t taken = 0; taken <= kMaxReportBytes && status.ok(); taken += 5) {
    status = reader.Take("at x\n");
  }
  EXPECT_FALSE(status.ok());
}

TEST(ReportLinesTest, AnUnfinishedReportFails) {
  const std::string begin = Described() + "begin bounds\nat the door\npassed bounds\n";
  for (const std::string& lines : {begin, begin + "begin splits\n"}) {
    ReportReader reader;
    ASSERT_TRUE(reader.Take(lines).ok());
    const auto report = reader.Finish("ended", "ended oddly");
    ASSERT_TRUE(report.ok());
    EXPECT_FALSE(report->ok());
    EXPECT_EQ(report->checks[0].outcome, PluginCheck::Outcome::kPassed);
    EXPECT_EQ(report->checks[1].outcome, PluginCheck::Outcome::kFailed);
    EXPECT_EQ(report->checks[1].finding, "ended oddly");
    EXPECT_EQ(report->checks[2].outcome, PluginCheck::Outcome::kNotRun);
  }
}

TEST(ReportLinesTest, AnUndescribedObjectIsInvalid) {
  ReportReader reader;
  ASSERT_TRUE(reader.Take("name x\n").ok());
  const absl::Status status = reader.Finish("ended", "ended oddly").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "while it was loaded, its process ended");
}

TEST(ReportLinesTest, TextIsPrintable) {
  ReportReader reader;
  ASSERT_TRUE(reader.Take("error 3 a\x1b[2Jb\xff\n").ok());
  const absl::Status status = reader.Finish("ended", "ended").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "a?[2Jb?");
}

}  // namespace
}  // namespace eps
