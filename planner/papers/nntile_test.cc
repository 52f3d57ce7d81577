#include "planner/papers/nntile_model.h"

#include <cmath>
#include <limits>

#include "base/job/layout/model_layout.h"
#include "base/job/models/gpt2.h"
#include "gtest/gtest.h"
#include "planner/papers/papers.h"
#include "planner/papers/transformer_counts.h"
#include "planner/workload.h"

namespace eps::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NntileRows, AllReachTheirTolerance) {
  const std::vector<Row> rows = NntileRows();
  EXPECT_GE(rows.size(), 120u);
  for (const Row& row : rows) {
    EXPECT_TRUE(row.ok()) << row.id << ": paper " << row.paper << ", ours " << row.ours;
  }
}

// 17.3B (4 layers, width 18 x 1024) and 54.5B (8 layers, width 23 x 1024) distinguish the numbers
// of positions.
TEST(NntileShape, OnlyGpt2PositionsGivePrintedSizes) {
  const auto prints = [](uint64_t layers, uint64_t width, uint64_t positions, double billions) {
    Gpt2Shape shape = NntileShape(layers, width);
    shape.positions = positions;
    return std::round(static_cast<double>(ModelParameters(shape)) / 1e8) ==
           std::round(billions * 10);
  };
  for (const uint64_t positions : {0, 512, 1024, 2048}) {
    const bool all = prints(4, 18, positions, 17.3) && prints(8, 23, positions, 54.5) &&
                     prints(4, 23, positions, 27.8) && prints(8, 18, positions, 33.6) &&
                     prints(8, 9, positions, 8.6) && prints(4, 16, positions, 13.7) &&
                     prints(4, 19, positions, 19.2) && prints(8, 11, positions, 12.8);
    EXPECT_EQ(all, positions == kGpt2Positions) << positions;
  }
}

TEST(TransformerCounts, OperationsMatchTheLayout) {
  JobSpec spec;
  spec.model.gpt2.n_layer = 4;
  spec.model.gpt2.n_head = 2;
  spec.model.gpt2.n_embd = 128;
  spec.model.gpt2.vocab_size = 1000;
  spec.model.gpt2.n_positions = 32;
  ASSERT_TRUE(BuildLayout(0, &spec).ok());
  const double tokens = 32;
  double expected = 4 * (2 * 2 * tokens * tokens * 128);  // scores and weighted values
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.rank == 2 && tensor.name != "transformer.wpe.weight") {
      expected += 2 * tokens * static_cast<double>(tensor.elements());
    }
  }
  const Gpt2Shape shape{4, 128, 1000, 32};
  EXPECT_EQ(LayersForwardFlops(shape, tokens).value() + HeadForwardFlops(tokens, 128, 1000),
            expected);
  EXPECT_EQ(SequenceTrainingFlops(shape, tokens).value(), 3 * expected);
}

TEST(FitsHost, MatchesTheLargestWidthsInTheFigures) {
  EXPECT_EQ(LargestWidth(4, Bytes(500e9)), 22u);
  EXPECT_EQ(LargestWidth(8, Bytes(900e9)), 22u);
  EXPECT_EQ(LargestWidth(4, Bytes(900e9)), 31u);
  EXPECT_EQ(LargestWidth(4, Bytes(1)), 0u);
}

TEST(FitsHost, CountsSixteenBytesAndAnUntiedHead) {
  const Gpt2Shape shape{1, 2, 5, 3};
  // Layer 12*4 + 13*2 = 74, embeddings (5 + 3) * 2, last norm 4, head 10.
  EXPECT_EQ(TrainingState(shape), Bytes(16 * (74 + 16 + 4 + 10)));
}

// Checks the range that the comment of kUsableHostMemory gives.
TEST(FitsHost, TheFiguresBoundTheUsableMemory) {
  const auto part = [](uint64_t layers, uint64_t width, double host) {
    return TrainingState(NntileShape(layers, width)) / Bytes(host);
  };
  EXPECT_LT(part(4, 22, 500e9), 0.918);
  EXPECT_LT(part(8, 22, 900e9), 0.918);
  EXPECT_LT(part(4, 31, 900e9), 0.918);
  EXPECT_GT(part(4, 23, 500e9), 0.928);
  EXPECT_GT(part(8, 23, 900e9), 0.928);
  EXPECT_GT(part(4, 32, 900e9), 0.928);
}

TEST(ComputeRate, MatchesFourAndEightA100) {
  EXPECT_NEAR(ComputeRate(4, FlopsPerSecond(156e12), 0.55).value(), 343.2e12, 1e3);
  EXPECT_NEAR(ComputeRate(8, FlopsPerSecond(156e12), 0.55).value(), 686.4e12, 1e3);
}

TEST(TileExtents, TheLastTileHoldsTheRemainder) {
  EXPECT_EQ(TileExtents(10, 4), (std::vector<uint64_t>{4, 4, 2}));
  EXPECT_EQ(TileExtents(8, 4), (std::vector<uint64_t>{4, 4}));
  EXPECT_EQ(TileExtents(3, 4), (std::vector<uint64_t>{3}));
  EXPECT_TRUE(TileExtents(0, 4).empty());
}

TEST(MaxSumExp, MergedTilesEqualTheWhole) {
  const MaxSumExp merged = Merge(OfTile({0, std::log(2.0)}), OfTile({std::log(4.0)}));
  EXPECT_NEAR(merged.max, 1.38629, 5e-6);
  EXPECT_NEAR(merged.sum, 1.75, 1e-15);
  const MaxSumExp whole = OfTile({-1, 700, 3, 699.5});
  const MaxSumExp parts = Merge(OfTile({-1, 700}), OfTile({3, 699.5}));
  EXPECT_EQ(parts.max, whole.max);
  EXPECT_NEAR(parts.sum, whole.sum, 1e-15);
  EXPECT_NEAR(whole.sum, 1 + std::exp(-0.5), 1e-15);
}

TEST(MaxSumExp, SkipsMaskedValues) {
  const MaxSumExp masked = OfTile({-kInfinity, -kInfinity});
  EXPECT_EQ(masked.max, -kInfinity);
  EXPECT_EQ(masked.sum, 0);
  for (const MaxSumExp& merged : {Merge(masked, OfTile({2})), Merge(OfTile({2}), masked),
                                  Merge(OfTile({2}), OfTile({})), OfTile({2, -kInfinity})}) {
    EXPECT_EQ(merged.max, 2);
    EXPECT_EQ(merged.sum, 1);
  }
  EXPECT_EQ(Merge(masked, masked).sum, 0);
}

TEST(RootSecondMoment, SurvivesWhereTheMomentUnderflows) {
  EXPECT_EQ(NextSecondMoment(0, 1e-25F, 0.999), 0);
  EXPECT_NEAR(NextRootSecondMoment(0, 1e-25F, 0.999), 3.16e-27, 0.005e-27);
}

TEST(RootSecondMoment, IsTheRootOfTheMoment) {
  float v = 0;
  float s = 0;
  for (const float gradient : {0.5F, -2.0F, 0.0F, 1.25F}) {
    v = NextSecondMoment(v, gradient, 0.9);
    s = NextRootSecondMoment(s, gradient, 0.9);
    EXPECT_NEAR(s * s, v, 1e-6 * v);
  }
  EXPECT_NEAR(v, 0.1 * (0.9 * 0.9 * 0.9 * 0.25 + 0.9 * 0.9 * 4 + 1.5625), 1e-6);
}

}  // namespace
}  // namespace eps::planner
