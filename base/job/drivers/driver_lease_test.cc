#include "base/job/drivers/driver_lease.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(DriverLease, TextNamesBoardAndGeneration) {
  const DriverLease lease = {UINT64_MAX, 57};
  EXPECT_EQ(ToText(lease), "18446744073709551615:57");
  const auto parsed = ParseDriverLease(ToText(lease));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, lease);
  for (const char* text : {"", "5", "5:", ":5", "0:5", "5:6:7", "5:-1", "x:1"}) {
    EXPECT_FALSE(ParseDriverLease(text).ok()) << text;
  }
}

TEST(DriverLease, OnlyLeasesOfABoardAreOrdered) {
  EXPECT_TRUE((DriverLease{1, 5}.IsBefore({1, 6})));
  EXPECT_FALSE((DriverLease{1, 6}.IsBefore({1, 6})));
  EXPECT_FALSE((DriverLease{1, 7}.IsBefore({1, 6})));
  EXPECT_FALSE((DriverLease{2, 5}.IsBefore({1, 6})));
}

}  // namespace
}  // namespace eps
