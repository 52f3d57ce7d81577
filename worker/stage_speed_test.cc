#include "worker/stage_speed.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/options.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

CalibrateOptions SmallBlock() {
  CalibrateOptions options;
  options.width = 64;
  options.heads = 2;
  options.seq_len = 32;
  options.samples = 1;
  options.runtime.device = "cpu";
  options.runtime.threads = 1;
  return options;
}

TEST(StageSpeed, MeasuresABlock) {
  const auto speed = MeasureStageSpeed(SmallBlock());
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_THAT(speed->profile, HasSubstr("cpu"));
  // The bounds detect a unit that is wrong by a factor of a thousand.
  EXPECT_GT(speed->block_seconds, 1e-6);
  EXPECT_LT(speed->block_seconds, 10);
  EXPECT_EQ(speed->wide_width, 1024u);
  EXPECT_EQ(speed->wide_heads, 16u);
  EXPECT_EQ(speed->wide_samples, 2u);
  EXPECT_GT(speed->wide_block_seconds, speed->block_seconds);
  EXPECT_GT(speed->wide_block_bf16_seconds, 1e-6);
  EXPECT_LT(speed->wide_block_bf16_seconds, 10);
  EXPECT_EQ(speed->device_memory, 0u);
  EXPECT_EQ(speed->to_device_bytes_per_second, 0);
  EXPECT_GE(speed->pass_seconds, 0);
  EXPECT_LT(speed->pass_seconds, 1);
  const auto json = nlohmann::json::parse(StageSpeedToJson(*speed));
  EXPECT_EQ(json["block_seconds"].get<double>(), speed->block_seconds);
  EXPECT_EQ(json["profile"], speed->profile);
}

TEST(StageSpeed, RefusesInvalidShapes) {
  CalibrateOptions options = SmallBlock();
  options.heads = 3;
  EXPECT_THAT(std::string(MeasureStageSpeed(options).status().message()),
              HasSubstr("multiple of heads"));
  options = SmallBlock();
  options.samples = 0;
  EXPECT_FALSE(MeasureStageSpeed(options).ok());
}

}  // namespace
}  // namespace eps
