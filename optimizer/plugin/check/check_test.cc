// The checks pass good plug-ins, and each finds what it is for. The child is a process of its own.

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/plugin/testing/outcomes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizer/plugin/check/plugin_check.h"
#include "optimizer/plugin/testing/objects.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

PluginCheckOptions Options() {
  PluginCheckOptions options;
  options.child = {"optimizer/plugin/testing/check_child"};
  options.deadline = std::chrono::minutes(5);
  options.speed_elements = 0;
  return options;
}

class PlantedTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedTest, FailsItsCheck) {
  const auto report = CheckPlugin(BadUpdater(GetParam().bad), Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->name, "bad_updater");
  ExpectFirstFinding(report->checks, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedTest,
    testing::Values(
        Planted{"write_beyond", "bounds", "outside of its arrays, or writes to one"},
        Planted{"write_beyond", "bounds", "at update, length 1, arrays that end before"},
        Planted{"write_far", "bounds", "writes outside of its arrays: update, length 1, "},
        Planted{"read_beyond", "bounds", "(SIGSEGV), at update, length 1, arrays that end"},
        Planted{"read_before", "bounds", "(SIGSEGV), at update, length 1, arrays that begin"},
        Planted{"write_gradient", "bounds", "that it may only read"},
        Planted{"write_step", "bounds", "that it may only read"},
        Planted{"file", "bounds", "a system call that the fence forbids: was killed by signal 31"},
        Planted{"mapping", "bounds", "a system call that the fence forbids"},
        Planted{"exit", "bounds", "ends its process: ended with exit code 0"},
        Planted{"trap", "bounds", "(SIGILL)"}, Planted{"counter", "splits", "update, "},
        Planted{"tail", "splits", "update, in pieces of 1 to 61 elements: element "},
        Planted{"alignment", "alignment",
                "0 bytes after a multiple of 64, other arrays elsewhere: element 0 of "},
        Planted{"kept_rate", "threads", "between calls with other numbers"},
        Planted{"shared_buffer", "threads", "called on several threads at once"},
        Planted{"nan", "values", "infinities and NaN among them: element "},
        Planted{"denormals", "values", "gradients with denormals"},
        Planted{"growth", "values", "with gradients of at most 2^20, element "},
        Planted{"parameter", "parameters", "momentum=1, lr 0"},
        Planted{"rounding", "mode", "update changes the floating-point control from 0x"},
        Planted{"signals", "mode", "update changes the mask of signals"}),
    [](const auto& info) {
      return absl::StrCat(info.param.bad, "_", info.param.check, "_", info.index);
    });

TEST(CheckTest, GoodUpdatersPass) {
  for (const std::string& path : {std::string(kGoodUpdater), BadUpdater("nothing")}) {
    const auto report = CheckPlugin(path, Options());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok()) << OutcomesOf(report->checks);
    EXPECT_EQ(report->checks.size(), 7U);
    EXPECT_FALSE(report->speed.has_value());
  }
}

TEST(CheckTest, OtherChecksRunAfterAFinding) {
  const auto report = CheckPlugin(BadUpdater("alignment"), Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(OutcomesOf(report->checks),
              AllOf(HasSubstr("splits passed"), HasSubstr("alignment failed"),
                    HasSubstr("values passed"), HasSubstr("mode passed")));
}

TEST(CheckTest, ChecksAfterADeathDoNotRun) {
  const auto report = CheckPlugin(BadUpdater("file"), Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(
      OutcomesOf(report->checks),
      AllOf(HasSubstr("bounds failed"), HasSubstr("splits not run"), HasSubstr("mode not run")));
}

TEST(CheckTest, AnEndlessLoopEndsAtTheDeadline) {
  PluginCheckOptions options = Options();
  options.deadline = std::chrono::milliseconds(1500);
  const auto report = CheckPlugin(BadUpdater("loop"), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->checks[0].finding,
              HasSubstr("did not end within 1.5 s, at update, length 1, "));
  const auto loading = CheckPlugin(BadUpdater("load_loop"), options);
  EXPECT_EQ(loading.status().code(), absl::StatusCode::kInvalidArgument) << loading.status();
  EXPECT_THAT(std::string(loading.status().message()),
              HasSubstr("bad_load_loop.so: while it was loaded, its process did not end within"));
}

TEST(CheckTest, MeasuresGoodUpdaters) {
  PluginCheckOptions options = Options();
  options.speed_elements = 100'003;
  const auto report = CheckPlugin(kGoodUpdater, options);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->speed.has_value()) << OutcomesOf(report->checks);
  EXPECT_EQ(report->speed->elements, 100'003U);
  EXPECT_EQ(report->speed->bytes_per_element, 20U);
  for (const PluginRate& rate : {report->speed->update, report->speed->plain}) {
    EXPECT_GT(rate.least, 0);
    EXPECT_GE(rate.median, rate.least);
    EXPECT_GE(rate.most, rate.median);
  }
}

TEST(CheckTest, DescribesWithoutChecks) {
  const auto report = DescribePlugin(kGoodUpdater, Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->name, "rmsprop");
  EXPECT_EQ(report->sha256.size(), 64U);
  EXPECT_THAT(report->fields, ElementsAre("square_avg"));
  ASSERT_EQ(report->parameters.size(), 2U);
  EXPECT_EQ(report->parameters[1].name, "eps");
  EXPECT_EQ(report->parameters[1].usual, 1e-8);
  EXPECT_EQ(report->parameters[1].most, 1);
  EXPECT_EQ(report->checks[0].outcome, PluginCheck::Outcome::kNotRun);
}

TEST(CheckTest, BadObjectsAreErrors) {
  const auto code = [](const std::string& path) {
    const absl::Status status = CheckPlugin(path, Options()).status();
    EXPECT_THAT(std::string(status.message()), StartsWith(path + ": "));
    return status.code();
  };
  EXPECT_EQ(code("gone.so"), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(Options().child[0]), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(BadUpdater("symbol")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(BadUpdater("load_abort")), absl::StatusCode::kInvalidArgument);
}

TEST(CheckTest, AMissingChildIsInternal) {
  PluginCheckOptions options = Options();
  options.child = {"gone"};
  EXPECT_EQ(CheckPlugin(kGoodUpdater, options).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace eps
