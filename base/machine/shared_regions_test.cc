#include "base/machine/shared_regions.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

using Memory = absl::Span<const uint8_t>;
using Place = std::pair<const uint8_t*, size_t>;

Place PlaceOf(Memory memory) { return {memory.data(), memory.size()}; }

// Counts its calls.
struct Counter {
  explicit Counter(bool succeeds = true) {
    user.attach = [this, succeeds](Memory region, SharedRegions::Access access) {
      attached.push_back(PlaceOf(region));
      last = access;
      return succeeds;
    };
    user.detach = [this](Memory region) { detached.push_back(PlaceOf(region)); };
  }
  std::vector<Place> attached, detached;
  SharedRegions::Access last = SharedRegions::Access::kRead;
  SharedRegions::User user;
};

TEST(SharedRegions, AreAttachedOnceAndDetachedAtLast) {
  SharedRegions regions;
  const std::vector<uint8_t> memory(300);
  Counter counter;
  {
    const auto first = regions.List({memory.data(), 100}, SharedRegions::Access::kRead);
    const auto second = regions.List({memory.data() + 100, 100}, SharedRegions::Access::kWrite);
    EXPECT_TRUE(regions.Attached({memory.data() + 30, 40}, counter.user));
    EXPECT_TRUE(regions.Attached({memory.data(), 100}, counter.user));
    ASSERT_EQ(counter.attached.size(), 1u);
    EXPECT_EQ(counter.attached[0], Place(memory.data(), 100));
    EXPECT_EQ(counter.last, SharedRegions::Access::kRead);
    EXPECT_TRUE(regions.Attached({memory.data() + 199, 1}, counter.user));
    EXPECT_EQ(counter.last, SharedRegions::Access::kWrite);
    EXPECT_EQ(counter.attached.size(), 2u);
    EXPECT_TRUE(counter.detached.empty());
  }
  const std::vector<Place> gone = {{memory.data() + 100, 100}, {memory.data(), 100}};
  EXPECT_EQ(counter.detached, gone);
  EXPECT_FALSE(regions.Attached({memory.data(), 100}, counter.user));
}

TEST(SharedRegions, HoldAllOfTheMemory) {
  SharedRegions regions;
  const std::vector<uint8_t> memory(300);
  Counter counter;
  const auto middle = regions.List({memory.data() + 100, 100}, SharedRegions::Access::kRead);
  EXPECT_FALSE(regions.Attached({memory.data() + 99, 2}, counter.user));
  EXPECT_FALSE(regions.Attached({memory.data() + 199, 2}, counter.user));
  EXPECT_FALSE(regions.Attached({memory.data(), 50}, counter.user));
  EXPECT_FALSE(regions.Attached({memory.data() + 200, 50}, counter.user));
  EXPECT_TRUE(counter.attached.empty());
}

TEST(SharedRegions, AFailureIsFinal) {
  SharedRegions regions;
  const std::vector<uint8_t> memory(100);
  Counter counter(/*succeeds=*/false);
  {
    const auto listed = regions.List(memory, SharedRegions::Access::kRead);
    EXPECT_FALSE(regions.Attached(memory, counter.user));
    EXPECT_FALSE(regions.Attached(memory, counter.user));
  }
  EXPECT_EQ(counter.attached.size(), 1u);
  EXPECT_TRUE(counter.detached.empty());
}

}  // namespace
}  // namespace eps
