#include "planner/papers/l2l_model.h"

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "planner/papers/papers.h"
#include "planner/papers/transformer_counts.h"

namespace eps::planner {
namespace {

RelayStep Step(double micro_batches) {
  RelayStep step;
  step.layers = 24;
  step.micro_batches = micro_batches;
  step.samples = 64;
  step.compute = Seconds(0.010);
  step.transfer = Seconds(0.010);
  return step;
}

TEST(L2lRows, AllReachTheirTolerance) {
  const std::vector<Row> rows = L2lRows();
  EXPECT_GE(rows.size(), 50u);
  for (const Row& row : rows) {
    EXPECT_TRUE(row.ok()) << row.id << ": paper " << row.paper << ", ours " << row.ours;
  }
}

// Without a stash the model's device memory is one input, so these rows would judge the input.
TEST(L2lRows, InputsAreNotJudged) {
  const std::set<std::string> inputs = {"l2l.table3.memory.u1", "l2l.table4.host.n24",
                                        "l2l.table4.host.n96", "l2l.table4.host.n384"};
  size_t found = 0;
  for (const Row& row : L2lRows()) {
    if (inputs.count(row.id) == 0) continue;
    ++found;
    EXPECT_FALSE(row.judged()) << row.id;
  }
  EXPECT_EQ(found, inputs.size());
}

TEST(L2lRows, RatiosMatchTheTables) {
  const auto ours = [](const std::string& id) {
    for (const Row& row : L2lRows()) {
      if (row.id == id) return row.ours;
    }
    ADD_FAILURE() << "no row " << id;
    return 0.0;
  };
  EXPECT_NEAR(ours("l2l.ratio.memory"), 46.1, 0.05);
  EXPECT_NEAR(ours("l2l.ratio.fp32"), 1.362, 0.0005);
}

TEST(RelayStep, MatchesTheWorkedExample) {
  // 24 layers: 4 * 2 * 10 ms of compute and 2 * 10 ms of transfers each.
  EXPECT_NEAR(TrainingTime(Step(2)).value(), 24 * 0.100, 1e-12);
  EXPECT_NEAR(ForwardTime(Step(2)).value(), 24 * 0.030, 1e-12);
  EXPECT_NEAR(TrainingThroughput(Step(2)).value(), 53.33, 0.005);
  EXPECT_NEAR(ForwardThroughput(Step(2)).value(), 177.8, 0.05);
  EXPECT_NEAR(TrainingThroughputLimit(Step(2)).value(), 66.67, 0.005);
}

TEST(RelayStep, ThroughputApproachesItsLimitFromBelow) {
  double last = 0;
  for (double u = 1; u <= 4096; u *= 2) {
    const double now = TrainingThroughput(Step(u)).value();
    EXPECT_GT(now, last);
    EXPECT_LT(now, TrainingThroughputLimit(Step(u)).value());
    last = now;
  }
  EXPECT_NEAR(last, 66.67, 0.02);
}

TEST(RelayStep, HostTimeIsOverheadOncePerStep) {
  RelayStep step = Step(10);
  EXPECT_NEAR(TrainingOverhead(step), 0.05, 1e-12);
  EXPECT_NEAR(ForwardOverhead(step), 0.10, 1e-12);
  step.host = Seconds(2.0);
  EXPECT_NEAR(TrainingTime(step).value(), 24 * 0.420 + 2.0, 1e-12);
  EXPECT_NEAR(TrainingOverhead(step), (24 * 0.020 + 2.0) / (24 * 0.400), 1e-12);
  EXPECT_NEAR(ForwardOverhead(step), 0.10, 1e-12);
}

TEST(RelayStep, PrintedEquationsLackFactors) {
  EXPECT_NEAR(PrintedTrainingThroughput(Step(4)).value(), 24 * TrainingThroughput(Step(4)).value(),
              1e-9);
  EXPECT_NEAR(PrintedForwardThroughput(Step(4)).value(),
              ForwardThroughput(Step(4)).value() * (4 + 1) / 2, 1e-9);
}

TEST(WalkRelay, KeepsTheTopLayerAtTheTurn) {
  for (const uint64_t layers : {1, 2, 24}) {
    EXPECT_EQ(WalkRelay(layers, /*keep_top=*/false).weights, 2 * layers);
    EXPECT_EQ(WalkRelay(layers, /*keep_top=*/true).weights, 2 * layers - 1);
    EXPECT_EQ(WalkRelay(layers, /*keep_top=*/true).gradients, layers);
  }
  EXPECT_EQ(WalkRelay(0, true).weights, 0u);
}

TEST(DeviceMemory, AStashOnDeviceGrowsWithDepth) {
  RelayMemory memory;
  memory.base = Bytes(1000);
  memory.layer_input = LayerInput(2, 3, 5, Bytes(2));
  EXPECT_EQ(memory.layer_input, Bytes(60));
  memory.in_flight = 3;
  EXPECT_EQ(DeviceMemory(memory, 24, 1), Bytes(1000));
  EXPECT_EQ(DeviceMemory(memory, 384, 1), Bytes(1000));
  EXPECT_EQ(DeviceMemory(memory, 384, 3), Bytes(1000 + 2 * 3 * 60));
  memory.stash = StashHome::kDevice;
  EXPECT_EQ(DeviceMemory(memory, 24, 1), Bytes(1000 + 24 * 60));
  EXPECT_EQ(DeviceMemory(memory, 24, 2), Bytes(1000 + 48 * 60 + 3 * 60));
}

TEST(HostCapacity, DividesByTheBytesPerParameter) {
  EXPECT_NEAR(HostCapacity(Bytes(512e9), Bytes(12)), 42.7e9, 0.05e9);
  EXPECT_NEAR(HostCapacity(Bytes(512e9), Bytes(10.24)), 50e9, 1);
  EXPECT_NEAR(HostCapacity(Bytes(512e9), Bytes(8)), 64e9, 1);
}

TEST(TransformerCounts, LayerFormulaMatchesTheLayout) {
  EXPECT_EQ(LayerParameters(1024), 12596224u);
  for (const uint64_t width : {1, 64, 1024, 4256}) {
    const Gpt2Shape shape{3, width, 11, 7};
    EXPECT_EQ(CountLayout(shape).layers, 3 * LayerParameters(width));
    EXPECT_EQ(CountLayout(shape).total, ModelParameters(shape));
  }
}

TEST(TransformerCounts, CountsTheDeepModels) {
  const auto billions = [](uint64_t layers, uint64_t width) {
    return static_cast<double>(layers * LayerParameters(width)) / 1e9;
  };
  EXPECT_NEAR(billions(24, 1024), 0.302, 0.0005);
  EXPECT_NEAR(billions(48, 1024), 0.605, 0.0005);
  EXPECT_NEAR(billions(96, 1024), 1.209, 0.0005);
  EXPECT_NEAR(billions(384, 1024), 4.837, 0.0005);
  EXPECT_NEAR(billions(78, 4256), 16.96, 0.005);
}

}  // namespace
}  // namespace eps::planner
