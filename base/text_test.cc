#include "base/text.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(TextTest, FiguresAreWrittenForPeople) {
  EXPECT_EQ(FormatSeconds(0), "0s");
  EXPECT_EQ(FormatSeconds(59.4), "59s");
  EXPECT_EQ(FormatSeconds(200), "3m20s");
  EXPECT_EQ(FormatSeconds(7861), "2h11m");
  EXPECT_EQ(FormatSeconds(4 * 86400 + 3 * 3600), "4d03h");
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatScientific(2.98e-4), "2.98e-4");
  EXPECT_EQ(FormatScientific(1.0), "1.00e0");
  EXPECT_EQ(FormatScientific(0), "0.00e0");
  EXPECT_EQ(FormatScientific(3.5e12), "3.50e12");
  EXPECT_EQ(FormatScientific(1e-10), "1.00e-10");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1.5 * 1024 * 1024), "1.5 MiB");
}

}  // namespace
}  // namespace eps
