#include "planner/papers/pim.h"

#include "base/job/job_spec.h"
#include "gtest/gtest.h"
#include "planner/papers/jitq_capacity.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

constexpr PimMemory kHbm3;
constexpr double kNs = 1e-9;

PimKernel Kernel(Placement placement, bool conditional_shift, Axis axis = Axis::kRow) {
  PimKernel kernel;
  kernel.placement = placement;
  kernel.conditional_shift = conditional_shift;
  kernel.axis = axis;
  return kernel;
}

TEST(Pim, MemoryMatchesTableOne) {
  EXPECT_NEAR(kHbm3.device_bandwidth().value(), 614.4e9, 1);
  EXPECT_NEAR(kHbm3.unit_bandwidth().value(), 2.46e12, 0.005e12);
  EXPECT_NEAR(kHbm3.row_open().value(), 48 * kNs, 1e-15);
}

TEST(Pim, ABf16GroupHasEightRows) {
  EXPECT_EQ(LanesOf(kHbm3, kBf16), 16);
  EXPECT_EQ(LanesOf(kHbm3, kFp32), 8);
  EXPECT_EQ(GroupElements(kHbm3, kBf16), 4096);
  EXPECT_EQ(GroupElements(kHbm3, kFp32), 2048);
  EXPECT_EQ(RowsOfBlock(kHbm3, Axis::kRow), 1);
  EXPECT_EQ(RowsOfBlock(kHbm3, Axis::kColumn), 8);
}

TEST(Pim, ShiftsDropTheExcessBits) {
  EXPECT_EQ(ShiftsOfMaximum(kBf16, kMx9), 1);
  EXPECT_EQ(ShiftsOfMaximum(kBf16, kMx6), 4);
  EXPECT_EQ(ShiftsOfMaximum(kBf16, kMx4), 6);
  EXPECT_EQ(ShiftsOfMaximum(kFp32, kMx9), 17);
  EXPECT_EQ(ShiftsOfMaximum(kFp32, kMx6), 20);
  EXPECT_EQ(ShiftsOfMaximum(kFp32, kMx4), 22);
}

TEST(Pim, StridedCommandsMatchHandCounts) {
  const PimCommands c = CommandsOfGroup(kHbm3, Kernel(Placement::kStrided, true));
  EXPECT_EQ(c.load, 16 * (16 + 2));  // two elements of a block have no register
  EXPECT_EQ(c.max, 16 * (16 + 8));
  EXPECT_EQ(c.compare, 16 * 8);
  EXPECT_EQ(c.add, 256);
  EXPECT_EQ(c.lane_shift, 0);
  EXPECT_EQ(c.bit_shift, 256 * 8);
  EXPECT_EQ(c.field, 256 * kFieldCommands);
  EXPECT_EQ(c.store, 16 * 6);  // 6 bits per element of 16 blocks of 16 in lanes of 16 bits
  // Source and results alternate in every block, and the results cross into a second row.
  EXPECT_EQ(c.activations, 16 * 2 + 1);
  EXPECT_NEAR(TimeOf(kHbm3, c).value(), (33 * 48 + 4992 * 3.33) * kNs, 1e-15);
}

TEST(Pim, TiledCommandsMatchHandCounts) {
  const PimCommands c = CommandsOfGroup(kHbm3, Kernel(Placement::kTiled, false));
  EXPECT_EQ(c.load, 256);
  EXPECT_EQ(c.lane_shift, 256 * 17);
  EXPECT_EQ(c.max, 256 * 16);
  EXPECT_EQ(c.compare, 256);
  EXPECT_EQ(c.add, 256 * 2);
  EXPECT_EQ(c.bit_shift, 256 * 24);
  EXPECT_EQ(c.store, 256);
  // 19 batches of at most 14 words open two rows each; three of them cross into another row of the
  // source, and into another row of the results.
  EXPECT_EQ(c.activations, 19 * 2 + 3 * 2);
}

TEST(Pim, UnconditionalShiftsTakeThreeCommands) {
  const PimCommands opt = CommandsOfGroup(kHbm3, Kernel(Placement::kStrided, true));
  const PimCommands strided = CommandsOfGroup(kHbm3, Kernel(Placement::kStrided, false));
  EXPECT_EQ(strided.bit_shift, 3 * opt.bit_shift);
  EXPECT_EQ(strided.commands() - strided.bit_shift, opt.commands() - opt.bit_shift);
}

// Each block opens both banks four times instead of once; everything else is equal.
TEST(Pim, ColumnsOpenMoreRows) {
  const PimCommands row = CommandsOfGroup(kHbm3, Kernel(Placement::kStrided, true));
  const PimCommands column =
      CommandsOfGroup(kHbm3, Kernel(Placement::kStrided, true, Axis::kColumn));
  EXPECT_EQ(column.commands(), row.commands());
  EXPECT_EQ(column.activations, row.activations + 16 * 3);
}

TEST(Pim, FewRegistersReadColumnsAgain) {
  PimMemory small = kHbm3;
  small.registers = 4;
  const PimKernel kernel = Kernel(Placement::kStrided, true, Axis::kColumn);
  const PimCommands c = CommandsOfGroup(small, kernel);
  EXPECT_EQ(c.load, 16 * (16 + 14));
  EXPECT_GT(c.activations, CommandsOfGroup(kHbm3, kernel).activations);
}

// A word holds half as many FP32 elements, and their significands have three times the bits.
TEST(Pim, Fp32DoublesTheCommandsPerElement) {
  PimKernel kernel = Kernel(Placement::kStrided, true);
  const PimCommands bf16 = CommandsOfGroup(kHbm3, kernel);
  kernel.from = kFp32;
  const PimCommands fp32 = CommandsOfGroup(kHbm3, kernel);
  EXPECT_EQ(fp32.load, bf16.load);  // for half as many elements
  EXPECT_EQ(fp32.bit_shift, 3 * bf16.bit_shift);
  EXPECT_EQ(fp32.store, bf16.store / 2);
  kernel.to = kMx9;
  EXPECT_EQ(CommandsOfGroup(kHbm3, kernel).store, 16 * 5);  // 4.5 words of each block
}

TEST(Pim, MoreStacksDivideTheTime) {
  const PimKernel kernel;
  const double elements = 1 << 24;
  const Seconds one = QuantizationTime(kHbm3, kernel, elements, 1);
  EXPECT_NEAR(one.value(), elements / 256 / 4096 * 18207.36 * kNs, 1e-12);
  EXPECT_NEAR(QuantizationTime(kHbm3, kernel, elements, 4) / one, 0.25, 1e-12);
}

TEST(PimDeathTest, TiledColumnsAreNotModelled) {
  EXPECT_DEATH(CommandsOfGroup(kHbm3, Kernel(Placement::kTiled, true, Axis::kColumn)), "kRow");
}

}  // namespace
}  // namespace eps::planner
