#include "base/machine/range_map.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kPage = 4096;

TEST(RangeMapTest, GapsAreTakenAndJoin) {
  RangeMap ranges(4 * kPage);
  const auto a = ranges.Take(1);
  const auto b = ranges.Take(kPage + 1);
  const auto c = ranges.Take(kPage);
  EXPECT_EQ(a, absl::optional<uint64_t>(0));
  EXPECT_EQ(b, absl::optional<uint64_t>(kPage));
  EXPECT_EQ(c, absl::optional<uint64_t>(3 * kPage));
  EXPECT_EQ(ranges.Take(1), absl::nullopt);
  EXPECT_EQ(ranges.Take(UINT64_MAX), absl::nullopt);
  ranges.Return(*a);
  ranges.Return(*c);
  EXPECT_EQ(ranges.Take(kPage + 1), absl::nullopt);  // both gaps are of one page
  ranges.Return(*b);
  EXPECT_EQ(ranges.Take(4 * kPage), absl::optional<uint64_t>(0));
}

}  // namespace
}  // namespace eps
