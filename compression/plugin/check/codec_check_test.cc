// The checks pass good codecs, and each finds what it is for. The child is a process of its own.

#include "compression/plugin/check/codec_check.h"

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/plugin/check/plugin_check.h"
#include "base/plugin/testing/outcomes.h"
#include "compression/plugin/testing/objects.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

PluginCheckOptions Options() {
  PluginCheckOptions options;
  options.child = {"compression/plugin/testing/check_child"};
  options.deadline = std::chrono::minutes(5);
  options.speed_elements = 0;
  return options;
}

class PlantedCodecTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedCodecTest, FailsItsCheck) {
  const auto report = CheckCodec(BadCodec(GetParam().bad), Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->name, "bad_codec");
  ExpectFirstFinding(report->checks, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedCodecTest,
    testing::Values(
        Planted{"read_beyond", "bounds", "(SIGSEGV), at encode, length 1, arrays that end"},
        Planted{"read_before", "bounds", "(SIGSEGV), at encode, length 1, arrays that begin"},
        Planted{"write_elements", "bounds", "that it may only read"},
        Planted{"write_beyond", "bounds", "(SIGSEGV), at encode, length 1, arrays that end"},
        Planted{"write_far", "bounds", "writes outside of its array: encode, length 1, "},
        Planted{"decode_read_beyond", "bounds", "(SIGSEGV), at decode, length 1, arrays that end"},
        Planted{"decode_write_beyond", "bounds", "(SIGSEGV), at decode, length 1, arrays that end"},
        Planted{"write_bytes", "bounds", "that it may only read"},
        Planted{"file", "bounds", "a system call that the fence forbids: was killed by signal 31"},
        Planted{"mapping", "bounds", "a system call that the fence forbids"},
        Planted{"exit", "bounds", "ends its process: ended with exit code 0"},
        Planted{"trap", "bounds", "(SIGILL)"},
        Planted{"large", "size", "are all 0: returns 7 bytes; the description allows 6"},
        Planted{"counter", "round_trip", "encode, length 1, small elements, once more"},
        Planted{"unwritten_byte", "round_trip", "held other bytes: byte 6 is 0x5a, expected 0xa5"},
        Planted{"unwritten_element", "round_trip", "decode, length 2, small elements, once more"},
        Planted{"refuse", "round_trip", "decode, length 5, small elements: refuses what encode"},
        Planted{"address", "alignment", "elements 4 and bytes 0 after a multiple of 64: encode: "},
        Planted{"kept", "threads", "after calls with other elements: encode: byte "},
        Planted{"shared_buffer", "threads", "called on several threads at once: encode: "},
        Planted{"shared_decoder", "threads", "called on several threads at once: decode: "},
        Planted{"nan", "values", "element 0 is nan, and every decoded element is finite"},
        Planted{"clamp", "values", "element 0 is inf, and every decoded element is finite"},
        Planted{"growth", "values", "elements are at most 2^20, and decoded element "},
        Planted{"lose_last", "feedback", "length 1: after 200 equal gradients, element 0 of "},
        Planted{"saturate", "feedback", "arrives as 0.00391 on average"},
        Planted{"trust", "hostile", "(SIGSEGV), at decode, length 1, 4 random bytes"},
        Planted{"accept", "hostile", "decode, length 1, 0 random bytes: once more in memory"},
        Planted{"rounding", "mode", "encode changes the floating-point control from 0x"},
        Planted{"decode_rounding", "mode", "decode changes the floating-point control from 0x"},
        Planted{"signals", "mode", "encode changes the mask of signals"}),
    [](const auto& info) { return absl::StrCat(info.param.bad, "_", info.param.check); });

TEST(CodecCheckTest, GoodCodecsPass) {
  for (const std::string& path :
       {std::string(kGoodCodec), BadCodec("nothing"), BadCodec("sparse")}) {
    const auto report = CheckCodec(path, Options());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok()) << OutcomesOf(report->checks);
    EXPECT_EQ(report->checks.size(), 9U);
    EXPECT_FALSE(report->speed.has_value());
  }
}

TEST(CodecCheckTest, OtherChecksRunAfterAFinding) {
  const auto report = CheckCodec(BadCodec("address"), Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(OutcomesOf(report->checks),
              AllOf(HasSubstr("round_trip passed"), HasSubstr("alignment failed"),
                    HasSubstr("hostile passed"), HasSubstr("mode passed")));
}

TEST(CodecCheckTest, AnEndlessLoopEndsAtTheDeadline) {
  PluginCheckOptions options = Options();
  options.deadline = std::chrono::milliseconds(1500);
  const auto report = CheckCodec(BadCodec("loop"), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->checks[0].finding,
              HasSubstr("did not end within 1.5 s, at encode, length 1, "));
  const auto loading = CheckCodec(BadCodec("load_loop"), options);
  EXPECT_EQ(loading.status().code(), absl::StatusCode::kInvalidArgument) << loading.status();
  EXPECT_THAT(std::string(loading.status().message()),
              HasSubstr("bad_load_loop.so: while it was loaded, its process did not end within"));
}

TEST(CodecCheckTest, MeasuresGoodCodecs) {
  PluginCheckOptions options = Options();
  options.speed_elements = 300'003;  // two calls
  const auto report = CheckCodec(kGoodCodec, options);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->speed.has_value()) << OutcomesOf(report->checks);
  EXPECT_EQ(report->speed->elements, 300'003U);
  // 1171 blocks of 256 elements, and one of 227.
  EXPECT_EQ(report->speed->encoded_bytes, 1171U * 36 + 4 + 29);
  for (const PluginRate& rate :
       {report->speed->encode, report->speed->decode, report->speed->copy}) {
    EXPECT_GT(rate.least, 0);
    EXPECT_GE(rate.median, rate.least);
    EXPECT_GE(rate.most, rate.median);
  }
}

TEST(CodecCheckTest, DescribesWithoutChecks) {
  const auto report = DescribeCodec(kGoodCodec, Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->name, "sign");
  EXPECT_EQ(report->sha256.size(), 64U);
  EXPECT_EQ(report->head_bytes, 4U);
  EXPECT_EQ(report->bytes_per_1024, 144U);
  EXPECT_TRUE(report->error_feedback);
  EXPECT_EQ(report->checks[0].outcome, PluginCheck::Outcome::kNotRun);
}

TEST(CodecCheckTest, BadObjectsAreErrors) {
  const auto code = [](const std::string& path) {
    const absl::Status status = DescribeCodec(path, Options()).status();
    EXPECT_THAT(std::string(status.message()), StartsWith(path + ": "));
    return status.code();
  };
  EXPECT_EQ(code("gone.so"), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(Options().child[0]), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(BadCodec("symbol")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(BadCodec("load_abort")), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eps
