#include "base/log.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

TEST(Log, WritesLinesWithTimeAndLevel) {
  SetLogLevel(LogLevel::kInfo);
  CaptureStderr();
  EPS_LOG_INFO("step " << 3 << " of {} took " << 0.5 << " s");
  const std::string line = GetCapturedStderr();
  EXPECT_THAT(line, ContainsRegex("^[0-9-]+T[0-9:.]+ [0-9]+ info step 3 of \\{\\} took 0.5 s\n$"));
}

TEST(Log, WarningsAndErrorsNameTheirPlace) {
  SetLogLevel(LogLevel::kInfo);
  CaptureStderr();
  EPS_LOG_WARN("odd");
  EPS_LOG_ERROR("bad");
  const std::string lines = GetCapturedStderr();
  EXPECT_THAT(lines, ContainsRegex("warning base/log_test.cc:[0-9]+: odd\n"));
  EXPECT_THAT(lines, ContainsRegex("error base/log_test.cc:[0-9]+: bad\n"));
}

TEST(Log, SkipsMessagesOfDisabledLevels) {
  SetLogLevel(LogLevel::kWarn);
  int evaluated = 0;
  CaptureStderr();
  EPS_LOG_INFO(++evaluated);
  EPS_LOG_DEBUG(++evaluated);
  EPS_LOG_WARN(++evaluated);
  EXPECT_EQ(evaluated, 1);
  SetLogLevel(LogLevel::kOff);
  EPS_LOG_ERROR(++evaluated);
  EXPECT_EQ(evaluated, 1);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr(": 1\n"));
}

// A death test is a process of its own, in which the level is not yet read.
TEST(LogDeathTest, TheEnvironmentSetsTheLevel) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto log_and_exit = [](const char* level) {
    setenv("EPS_LOG", level, 1);
    EPS_LOG_INFO("an info line");
    EPS_LOG_ERROR("an error line");
    std::exit(0);
  };
  const auto ok = testing::ExitedWithCode(0);
  EXPECT_EXIT(log_and_exit("info"), ok, "an info line");
  EXPECT_EXIT(log_and_exit("error"), ok, "^[^\n]*an error line\n$");
  EXPECT_EXIT(log_and_exit("loud"), ok, "EPS_LOG=loud is no level(.|\n)*an info line");
}

}  // namespace
}  // namespace eps
