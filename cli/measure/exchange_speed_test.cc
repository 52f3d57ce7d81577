#include "cli/measure/exchange_speed.h"

#include "cli/measure/machine_speed.h"
#include "gtest/gtest.h"
#include "planner/hardware.h"
#include "planner/units.h"

namespace eps {
namespace {

// Runs a server and a worker in this process. The bounds hold on any machine, and are tight enough
// to detect a unit that is wrong by a factor of 1,000.
TEST(ExchangeSpeed, IsPlausible) {
  planner::ServerKind server;
  server.update = MeasureUpdate();
  const auto fp32 = MeasureCodec("fp32");
  ASSERT_TRUE(fp32.ok()) << fp32.status();
  const auto speed = MeasureExchange(server, *fp32);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_LT(speed->chunk, planner::Seconds(0.01));
  EXPECT_GT(speed->transport, planner::BytesPerSecond(1e6));
}

}  // namespace
}  // namespace eps
