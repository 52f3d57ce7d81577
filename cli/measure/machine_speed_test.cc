#include "cli/measure/machine_speed.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/hardware.h"
#include "planner/units.h"

namespace eps {
namespace {

using planner::BytesPerSecond;
using ::testing::HasSubstr;

// Bounds that hold on any machine and detect a unit that is wrong by a factor of 1,000.
constexpr BytesPerSecond kSlow(1e6);
constexpr BytesPerSecond kFast(1e13);

void ExpectPlausible(BytesPerSecond rate) {
  EXPECT_GT(rate, kSlow);
  EXPECT_LT(rate, kFast);
}

TEST(MachineSpeed, RatesArePlausible) {
  ExpectPlausible(MeasureMemory());
  ExpectPlausible(MeasureUpdate());
  ExpectPlausible(*MeasureLoopback());
  const planner::Seconds latency = *MeasureLatency();
  EXPECT_GT(latency, planner::Seconds(1e-7));
  EXPECT_LT(latency, planner::Seconds(1));
}

TEST(MachineSpeed, CodecsByTheirNames) {
  for (const char* name : {"fp32", "mx6", "topk:0.01"}) {
    const auto rates = MeasureCodec(name);
    ASSERT_TRUE(rates.ok()) << rates.status();
    EXPECT_EQ(rates->name, name);
    ExpectPlausible(rates->encode);
    ExpectPlausible(rates->decode);
  }
  EXPECT_THAT(std::string(MeasureCodec("mx5").status().message()), HasSubstr("mx6"));
}

TEST(MachineSpeed, LeavesTheDiskUnchanged) {
  const std::string folder = testing::TempDir() + "/disk";
  const auto speed = MeasureDisk(folder);
  ASSERT_TRUE(speed.ok()) << speed.status();
  ExpectPlausible(speed->read);
  ExpectPlausible(speed->write);
  EXPECT_GT(speed->free, planner::Bytes(0));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace eps
