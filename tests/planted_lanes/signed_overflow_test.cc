// Planted: overflows a signed integer. The asan lane, which checks for undefined behaviour too,
// must report it.

#include <limits>

#include "gtest/gtest.h"

TEST(Planted, OverflowsASignedInteger) {
  volatile int largest = std::numeric_limits<int>::max();
  const int sum = largest + 1;
  EXPECT_NE(sum, 0);
}
