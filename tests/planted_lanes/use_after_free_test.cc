// Planted: reads freed memory. The asan lane must report it.

#include <memory>

#include "gtest/gtest.h"

TEST(Planted, ReadsFreedMemory) {
  auto owner = std::make_unique<volatile int>(1);
  volatile int* const borrowed = owner.get();
  owner.reset();
  EXPECT_GE(*borrowed, -1);
}
