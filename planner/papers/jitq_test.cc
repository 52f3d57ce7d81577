#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "gtest/gtest.h"
#include "planner/papers/jitq_capacity.h"
#include "planner/papers/papers.h"
#include "planner/papers/row.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

constexpr MxFormat kFormats[] = {kMx4, kMx6, kMx9};

double OursOf(const std::string& id) {
  for (const Row& row : JitqRows()) {
    if (row.id == id) return row.ours;
  }
  ADD_FAILURE() << "no row " << id;
  return 0;
}

TEST(JitqRows, AllReachTheirTolerance) {
  std::set<std::string> ids;
  size_t judged = 0;
  for (const Row& row : JitqRows()) {
    EXPECT_TRUE(row.ok()) << row.id << ": paper " << row.paper << ", ours " << row.ours;
    EXPECT_TRUE(ids.insert(row.id).second) << row.id << " appears twice";
    EXPECT_EQ(row.id.rfind("jitq.", 0), 0u) << row.id;
    EXPECT_TRUE(row.judged() || !row.note.empty()) << row.id << " does not say why";
    judged += row.judged();
  }
  EXPECT_EQ(ids.size(), 87u);
  EXPECT_EQ(judged, 70u);
}

TEST(JitqRows, KeepTheOrdersThatThePaperStates) {
  EXPECT_GE(OursOf("jitq.pim.fp32.slack.mx9"), 1);  // "maintaining the slack for MX9"
  // Longer sequences add work to the device and none to the quantizer.
  EXPECT_GT(OursOf("jitq.models.slack.10T.mx6"), OursOf("jitq.models.slack.1T.mx6"));
  EXPECT_GT(OursOf("jitq.models.slack.100T.mx6"), OursOf("jitq.models.slack.10T.mx6"));
}

TEST(MxFormat, HasTheBitsOfTheCodec) {
  const double bytes[] = {0.5, 0.75, 1.125};
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    const auto codec = FindCodec(kFormats[i].name);
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ(kFormats[i].bits_per_element(), (*codec)->traits().bits_per_element);
    EXPECT_EQ(kFormats[i].bytes_per_element(), Bytes(bytes[i]));
  }
}

TEST(CapacitySaving, IsBoundedByTheCopies) {
  const double two[] = {0.1250, 0.1765, 0.2432};
  const double one[] = {0.0667, 0.0968, 0.1385};
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    const Bytes copy = kFormats[i].bytes_per_element();
    EXPECT_NEAR(CapacitySaving({Bytes(7), Bytes(), copy, 2, 0}), two[i], 5e-5);
    EXPECT_NEAR(CapacitySaving({Bytes(7), Bytes(), copy, 1, 0}), one[i], 5e-5);
  }
}

TEST(CapacitySaving, MatchesActivationsSolvedByHand) {
  const double saving_of_two[] = {0.09, 0.125, 0.168};
  const double activations_of_two[] = {3.1, 3.5, 4.1};
  const double fp32_saving[] = {0.056, 0.079, 0.111};
  const double fp32_activations[] = {3.9, 4.5, 5.0};
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    const Bytes copy = kFormats[i].bytes_per_element();
    EXPECT_NEAR(ActivationsForSaving({Bytes(7), Bytes(), copy, 2, 0}, saving_of_two[i]).value(),
                activations_of_two[i], 0.06);
    EXPECT_NEAR(ActivationsForSaving({Bytes(13), Bytes(), copy, 2, 0}, fp32_saving[i]).value(),
                fp32_activations[i], 0.06);
  }
}

TEST(CapacitySaving, ExcludesBlocksThatKeepCopies) {
  const ParameterMemory all{Bytes(7), Bytes(3), Bytes(1), 2, 0};
  ParameterMemory some = all;
  some.kept_share = 0.25;
  EXPECT_NEAR(CapacitySaving(some), 0.75 * CapacitySaving(all), 1e-12);
  EXPECT_NEAR(ActivationsForSaving(some, CapacitySaving(some)).value(), 3, 1e-12);
}

TEST(ThroughputLoss, OneKappaFitsThreeFormats) {
  const double loss[] = {2.4, 1.6, 1.1};
  const double slack[] = {1.6, 2.4, 3.7};
  for (size_t i = 0; i < std::size(loss); ++i) {
    const double kappa = KappaOf(loss[i], 1 / slack[i]);
    EXPECT_GE(kappa, 3.835);
    EXPECT_LE(kappa, 4.075);
    EXPECT_LT(kappa, 100 * KappaBound(16, 104));
    EXPECT_NEAR(ThroughputLoss(kappa, 1 / slack[i]), loss[i], 1e-12);
  }
  EXPECT_EQ(ThroughputLoss(3.9, 7), 3.9);  // the overlap cannot exceed all of the time
  EXPECT_NEAR(KappaBound(16, 104), 1 - 88.0 / 104, 1e-12);
}

TEST(SustainedStall, IsTheDeficitAtAnyLookAhead) {
  for (int look_ahead : {1, 2, 4, 16}) {
    EXPECT_NEAR(SustainedStall(Seconds(3), Seconds(2), look_ahead, 200).value(), 1, 1e-12);
    EXPECT_EQ(SustainedStall(Seconds(2), Seconds(2), look_ahead, 200), Seconds(0));
    EXPECT_EQ(SustainedStall(Seconds(1), Seconds(2), look_ahead, 200), Seconds(0));
  }
  EXPECT_EQ(SustainedStall(Seconds(3), Seconds(2), 1, 2), Seconds(1));
}

TEST(BlockComputeTime, IsTheLargerOfOperationsAndInputs) {
  const ShardedTransformer shape{"", 1, 4, 2, 2, 1, 1, 1};
  const double huge = 1e30;
  // 4 S E I + 8 S E^2 + 4 S^2 E with S 2, E 4, I 16.
  EXPECT_NEAR(BlockComputeTime(shape, {FlopsPerSecond(1), BytesPerSecond(huge)}, Bytes(1)).value(),
              512 + 256 + 64, 1e-9);
  // The inputs of the six products: 56 + 2 x 8 + 2 x 8 + 24 + 72 + 96.
  EXPECT_NEAR(
      BlockComputeTime(shape, {FlopsPerSecond(huge), BytesPerSecond(1)}, Bytes(0.5)).value(),
      280 * 0.5 / 0.9, 1e-9);
}

TEST(BlockComputeTime, IsDividedByTensorParallelism) {
  ShardedTransformer shape{"", 1, 64, 8, 32, 3, 1, 1};
  const MatrixDevice device{FlopsPerSecond(1), kNoLimit};
  const Seconds whole = BlockComputeTime(shape, device, Bytes(1));
  shape.tensor_parallel = 4;
  EXPECT_NEAR(BlockComputeTime(shape, device, Bytes(1)) / whole, 0.25, 1e-12);
}

TEST(ShardedTransformer, MatchesTheFutureModels) {
  const ShardedTransformer shape{"", 80, 32768, 128, 4096, 1, 128, 2};
  EXPECT_NEAR(shape.parameters(), 1.03e12, 0.005e12);
  EXPECT_NEAR(shape.block_parameters() * 80, shape.parameters(), 1);
}

TEST(GatheredBytes, ExcludesTheOwnShard) {
  EXPECT_EQ(GatheredBytes(800, Bytes(2), 8), Bytes(1400));
  EXPECT_EQ(GatheredBytes(800, Bytes(2), 1), Bytes(0));
}

}  // namespace
}  // namespace eps::planner
