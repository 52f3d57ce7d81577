#include "storage/disk/staging_pool.h"

#include <string>

#include "base/testing/manual_executor.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(StagingPool, GivesBuffersToTheFirstLane) {
  ManualExecutor executor;
  auto pool = *StagingPool::New(kDiskBlock, /*buffers=*/1, &executor);
  std::string order;
  const auto use = [&](char name) {
    return [&order, &pool, name](uint8_t* buffer) {
      order += name;
      pool->Release(buffer);
    };
  };
  pool->Acquire(Lane::kUpdate, use('a'));  // gets the buffer at once
  pool->Acquire(Lane::kBackground, use('d'));
  pool->Acquire(Lane::kUpdate, use('c'));
  pool->Acquire(Lane::kClient, use('b'));
  executor.RunAll();
  EXPECT_EQ(order, "abcd");
}

}  // namespace
}  // namespace eps
