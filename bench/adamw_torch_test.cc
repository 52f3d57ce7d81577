// Checks that the torch benchmark compares two kernels that do the same work. Nothing is timed.

#include "bench/peers/adamw_torch.h"

#include <utility>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(AdamWTorch, BothKernelsComputeTheSameUpdate) {
  for (const size_t n : {size_t{1}, size_t{1037}, (size_t{1} << 16) + 13}) {
    for (const auto& [threads, memory] :
         {std::pair{1, TorchMemory::kTensors}, std::pair{2, TorchMemory::kTensors},
          std::pair{2, TorchMemory::kHugePages}}) {
      AdamWPair pair(n, memory);
      for (int i = 0; i < 3; ++i) {
        EXPECT_GT(pair.TimeOurs(threads), 0);
        EXPECT_GT(pair.TimeTorch(threads, /*clips=*/i == 1), 0);
      }
      EXPECT_EQ(pair.Difference(), "") << n << " parameters, " << threads << " threads";
    }
  }
}

TEST(AdamWTorch, DetectsAMissingUpdate) {
  AdamWPair pair(1037, TorchMemory::kTensors);
  pair.TimeOurs(2);
  EXPECT_NE(pair.Difference(), "");
  pair.TimeTorch(2);
  EXPECT_EQ(pair.Difference(), "");
}

TEST(AdamWTorch, DetectsAThousandthOfAStep) {
  AdamWPair pair(1037, TorchMemory::kTensors);
  pair.TimeOurs(2);
  pair.TimeTorch(2);
  float& weight = pair.our_weights()[1036];
  weight += 1e-6f;
  EXPECT_NE(pair.Difference().find("weight of parameter 1036"), std::string::npos);
}

TEST(Timing, ReportsMedianExtremesAndTheGoal) {
  const Spread spread = SpreadOf({3, 1, 10});
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.low, 1);
  EXPECT_EQ(spread.high, 10);
  EXPECT_TRUE(ReportRatio("reached", {1.0, 1.2, 1.3}, 1.2));
  EXPECT_FALSE(ReportRatio("missed", {1.0, 1.1, 1.3}, 1.2));
}

}  // namespace
}  // namespace eps
