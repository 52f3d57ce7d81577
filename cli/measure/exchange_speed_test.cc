#include "cli/measure/exchange_speed.h"

#include "cli/measure/machine_speed.h"
#include "gtest/gtest.h"
#include "planner/hardware.h"
#include "planner/units.h"

namespace eps {
namespace {

// A server and a worker of this program in this process: no machine that runs this is slower or
// faster, so that a unit that is wrong by a thousand is seen.
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
