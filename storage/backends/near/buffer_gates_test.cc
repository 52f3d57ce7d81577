#include "storage/backends/near/buffer_gates.h"

#include <memory>

#include "gtest/gtest.h"

namespace eps::durable {
namespace {

TEST(BufferGatesTest, OpensOneBufferAtATime) {
  const auto gates = std::make_shared<BufferGates>(/*buffers=*/3, /*array_bytes=*/4096);
  int first = 0;
  int second = 0;
  gates->When(0, [&] { ++first; });
  gates->When(1, [&] { ++second; });
  gates->Free(1);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
  gates->Free(1);
  EXPECT_EQ(second, 1);
  gates->Free(0);
  EXPECT_EQ(first, 1);
  gates->When(0, [&] { ++first; });
  EXPECT_EQ(first, 2);
}

TEST(BufferGatesTest, WaitsForAllInAnyOrder) {
  const auto gates = std::make_shared<BufferGates>(3, 4096);
  bool all = false;
  gates->WhenAll([&] { all = true; });
  gates->Free(1);
  EXPECT_FALSE(all);
  gates->FreeWeights();
  EXPECT_TRUE(all);
}

}  // namespace
}  // namespace eps::durable
