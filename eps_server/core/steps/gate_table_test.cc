#include "eps_server/core/steps/gate_table.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;

TEST(GateTable, TheLowestGateHolds) {
  GateTable table(1);
  EXPECT_FALSE(table.InForce().has_step());
  table.Set("driver", 7);
  table.Set("drain/1", 5);
  table.Set("another", 5);
  EXPECT_EQ(table.InForce().step(), 5u);
  EXPECT_THAT(table.InForce().holders(), ElementsAre("another", "drain/1"));
  EXPECT_EQ(GateText(table.InForce()), "the gate at step 5 (another, server 1 drains)");
}

TEST(GateTable, LiftingOneLeavesTheOthers) {
  GateTable table(1);
  table.Set("driver", 7);
  table.Set("drain/1", 5);
  table.Lift("drain/1");
  EXPECT_EQ(table.InForce().step(), 7u);
  EXPECT_THAT(table.InForce().holders(), ElementsAre("driver"));
  table.Lift("driver");
  EXPECT_FALSE(table.InForce().has_step());
}

TEST(GateTable, AHolderHasOneGate) {
  GateTable table(1);
  table.Set("driver", 3);
  table.Set("driver", 9);
  EXPECT_EQ(table.InForce().step(), 9u);
  EXPECT_EQ(table.gates().size(), 1u);
}

TEST(GateTable, StepZeroIsABorder) {
  GateTable table(1);
  table.Set("driver", 0);
  EXPECT_TRUE(table.InForce().has_step());
}

TEST(GateTable, RemembersTheDriversLastNumber) {
  GateTable table(1);
  EXPECT_EQ(table.LastNumber("driver"), 0u);
  for (const char* const holder : {"driver", "save/1", "save/2"}) {
    table.SetUntil(holder, 3, holder == std::string("save/2") ? 100 : 1000);
    table.SetLastNumber(holder, 7);
    EXPECT_EQ(table.LastNumber(holder), 7u);
  }
  table.LiftEnded(100);
  EXPECT_EQ(table.LastNumber("save/2"), 0u) << "its gate has lapsed";
  table.Lift("save/1");
  table.SetLastNumber("save/1", 8);
  EXPECT_EQ(table.LastNumber("save/1"), 0u) << "it has no gate";
  table.Lift("driver");
  EXPECT_EQ(table.LastNumber("driver"), 7u);
  table.SetUntil("driver", 3, 100);
  EXPECT_TRUE(table.LiftEnded(100));
  EXPECT_EQ(table.LastNumber("driver"), 7u) << "although its gate has lapsed";
}

TEST(GateTable, TheDriverSpeaksForItself) {
  GateTable table(1);
  table.Set("save/1", 3);
  table.Lift("save/1");
  EXPECT_FALSE(table.InForce().driver_spoke());
  table.Lift("driver");  // it has nothing to wait for
  EXPECT_TRUE(table.InForce().driver_spoke());
  GateTable other(1);
  other.Set("driver", 3);
  EXPECT_TRUE(other.driver_spoke());
}

TEST(GateTable, EachChangeAsksEveryShardAgain) {
  GateTable table(2);
  table.Set("driver", 7);
  table.OnAnswer(ShardId(0), 1, 3);
  EXPECT_EQ(table.Missing(1), ShardId(1));
  table.OnAnswer(ShardId(1), 1, 4);
  EXPECT_EQ(table.Missing(1), std::nullopt);
  EXPECT_EQ(table.FirstBorder(), 4u);
  table.Lift("nobody");
  EXPECT_EQ(table.revision(), 2u);
  EXPECT_EQ(table.Missing(2), ShardId(0));
  table.OnAnswer(ShardId(0), 2, 9);
  table.OnAnswer(ShardId(0), 1, 3);  // late
  table.OnAnswer(ShardId(1), 8, 1);  // of another process of the lead
  EXPECT_EQ(table.Missing(2), ShardId(1));
  table.OnAnswer(ShardId(1), 2, 5);
  EXPECT_EQ(table.FirstBorder(), 9u);
}

TEST(GateTable, AGateEndsUnlessItIsRenewed) {
  GateTable table(1);
  table.Set("driver", 9);
  EXPECT_EQ(table.NextEnd(), std::nullopt);
  table.SetUntil("save/1", 7, 100);
  table.SetUntil("save/2", 8, 50);
  EXPECT_EQ(table.NextEnd(), 50u);
  EXPECT_FALSE(table.LiftEnded(49));
  const uint64_t revision = table.revision();
  table.SetUntil("save/1", 7, 150);
  EXPECT_EQ(table.revision(), revision) << "the shards have it already";
  table.SetUntil("save/1", 6, 150);
  EXPECT_EQ(table.revision(), revision + 1);
  EXPECT_TRUE(table.LiftEnded(149));
  EXPECT_THAT(table.InForce().holders(), ElementsAre("save/1"));
  EXPECT_TRUE(table.LiftEnded(150));
  EXPECT_THAT(table.InForce().holders(), ElementsAre("driver"));
  EXPECT_EQ(table.revision(), revision + 3);
}

TEST(GateTable, SetOrLiftedGatesDoNotEnd) {
  GateTable table(1);
  table.SetUntil("save/1", 7, 100);
  table.Set("save/1", 7);
  EXPECT_EQ(table.NextEnd(), std::nullopt);
  table.SetUntil("save/1", 7, 100);
  table.Lift("save/1");
  EXPECT_FALSE(table.LiftEnded(100));
}

TEST(GateTable, ANewTermForgetsTheAnswers) {
  GateTable table(1);
  table.Set("driver", 7);
  table.OnAnswer(ShardId(0), 1, 3);
  table.ForgetAnswers();
  EXPECT_EQ(table.Missing(1), ShardId(0));
  EXPECT_EQ(table.InForce().step(), 7u);
}

}  // namespace
}  // namespace eps
