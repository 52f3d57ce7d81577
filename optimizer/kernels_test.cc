#include "optimizer/kernels.h"

#include "base/numerics/flush_denormals.h"
#include "base/testing/every_target.h"
#include "base/testing/guarded_memory.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "optimizer/testing/kernel_checks.h"

namespace eps {
namespace {

constexpr size_t kMaxLength = 70;

// Without this, every other test might run the same kernel once for each target.
TEST(KernelTarget, FollowsTheChosenTarget) {
  OnEveryTarget([] {
    EXPECT_EQ(hwy::SupportedTargets() & (hwy::SupportedTargets() - 1), 0) << "one bit";
    EXPECT_STREQ(KernelTarget(), hwy::TargetName(hwy::SupportedTargets()));
  });
}

TEST(AddSquaresKernel, EqualsTheReferenceAtEveryShape) {
  OnEveryTarget([] {
    ScopedFlushDenormals flush;
    Random random;
    for (size_t rows = 0; rows <= 3; ++rows) {
      for (size_t cols = 1; cols <= kMaxLength; ++cols) {
        const size_t ld = cols + rows;
        const size_t n = rows == 0 ? 0 : (rows - 1) * ld + cols;
        GuardedMemory x(4 * n);
        for (size_t i = 0; i < n; ++i) x.floats()[i] = random.Wide();
        double expected[kSquareLanes] = {0.5};
        double found[kSquareLanes] = {0.5};
        const float scale = 0.3f;
        reference::AddSquares(x.floats(), rows, cols, ld, scale, expected);
        AddSquares(x.floats(), rows, cols, ld, scale, found);
        for (size_t i = 0; i < kSquareLanes; ++i) {
          ASSERT_EQ(expected[i], found[i]) << rows << " x " << cols << ", lane " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace eps
