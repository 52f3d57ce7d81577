#include "worker/measure/step_speed.h"

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

StepOptions Small(const std::string& precision) {
  StepOptions options;
  options.layers = 2;
  options.width = 32;
  options.heads = 2;
  options.seq_len = 16;
  options.samples = 2;
  options.vocab = 64;
  options.steps = 1;
  options.precision = precision;
  options.runtime.device = "cpu";
  options.runtime.threads = 1;
  return options;
}

TEST(StepSpeed, MeasuresAStepAndItsHalves) {
  for (const char* const precision : {"fp32", "bf16"}) {
    const auto speed = MeasureStepSpeed(Small(precision));
    ASSERT_TRUE(speed.ok()) << speed.status();
    const auto json = nlohmann::json::parse(StepSpeedToJson(*speed));
    EXPECT_EQ(json["parameters"], 2 * (12 * 32 * 32 + 13 * 32) + (64 + 16) * 32 + 2 * 32);
    EXPECT_EQ(json["tokens"], 2 * 2 * 16);
    EXPECT_EQ(json["precision"], precision);
    EXPECT_EQ(json["gradient_sum"], "tree");
    EXPECT_EQ(json["keep"], "none");
    for (const char* const field : {"step_s", "compute_s", "transfer_s", "over_slower_half"}) {
      EXPECT_GT(json[field], 0) << field;
    }
    EXPECT_GT(json["device_peak_bytes"], 12 * 32 * 32 * 4);
  }
}

TEST(StepSpeed, TracesAStep) {
  StepOptions options = Small("fp32");
  options.trace = testing::TempDir() + "/trace.json";
  ASSERT_TRUE(MeasureStepSpeed(options).ok());
  std::ifstream file(options.trace);
  const auto json = nlohmann::json::parse(file);
  std::set<std::string> names;
  for (const auto& event : json["traceEvents"]) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GE(event["ts"], 0);
    EXPECT_EQ(event["args"]["step"], 3) << event;  // after one to warm up and one that is timed
    names.insert(event["name"]);
  }
  EXPECT_GT(names.size(), 2u);
}

TEST(StepSpeed, RefusesWhatItCannotMeasure) {
  StepOptions sum = Small("fp32");
  sum.gradient_sum = "line";
  const absl::Status of_sum = MeasureStepSpeed(sum).status();
  EXPECT_TRUE(absl::StrContains(of_sum.message(), "--gradient-sum=line")) << of_sum;
  const absl::Status precision = MeasureStepSpeed(Small("fp8")).status();
  EXPECT_TRUE(absl::StrContains(precision.message(), "--precision=fp8")) << precision;
  StepOptions options = Small("fp32");
  options.trace = "/nowhere/trace.json";
  const absl::Status trace = MeasureStepSpeed(options).status();
  EXPECT_TRUE(absl::StrContains(trace.message(), "/nowhere/trace.json")) << trace;
  options = Small("fp32");
  options.heads = 3;
  EXPECT_EQ(MeasureStepSpeed(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eps
