#include "planner/quantity_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

using ::testing::HasSubstr;

TEST(QuantityText, ReadsPrefixesAndUnits) {
  EXPECT_EQ(ParseBytes("16GB")->value(), 16e9);
  EXPECT_EQ(ParseBytes("1.5 TiB")->value(), 1.5 * (1ull << 40));
  EXPECT_EQ(ParseBytes("7B")->value(), 7);
  EXPECT_EQ(ParseBytesPerSecond("12GB/s")->value(), 12e9);
  EXPECT_EQ(ParseBytesPerSecond("900 kB/s")->value(), 900e3);
  EXPECT_EQ(ParseFlopsPerSecond("989TFLOP/s")->value(), 989e12);
  EXPECT_DOUBLE_EQ(ParseSeconds("50us")->value(), 50e-6);
  EXPECT_EQ(ParseSeconds("2s")->value(), 2);
  EXPECT_EQ(ParseSeconds("0s")->value(), 0);
  EXPECT_DOUBLE_EQ(ParsePrice("3.6$/h")->value(), 3.6 / 3600);
}

TEST(QuantityText, RefusesMissingUnitsAndBadNumbers) {
  for (const char* text : {"", "16", "GB", "16G", "16GB/s", "-1GB", "0GB", "nanGB", "infGB",
                           "1e400GB", "16QB", "0x10B", "1 2GB"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
  for (const char* text : {"1", "1h", "-1s", "s", "infs"}) {
    EXPECT_FALSE(ParseSeconds(text).ok()) << text;
  }
  EXPECT_FALSE(ParsePrice("3").ok());
  EXPECT_THAT(std::string(ParseBytes("16").status().message()), HasSubstr("found \"16\""));
}

TEST(QuantityText, ExactTextSurvivesARoundTrip) {
  for (const double value : {1.0, 16e9, 1.5e12, 7.68e12, 123456789.125, 1e15 / 3, 4096.0, 0.1}) {
    EXPECT_EQ(ParseBytes(ExactText(Bytes(value)))->value(), value) << ExactText(Bytes(value));
    EXPECT_EQ(ParseSeconds(ExactText(Seconds(value)))->value(), value);
  }
  for (const double dollars : {0.0, 3.5, 0.4, 3.06, 2.5}) {
    const DollarsPerSecond price = *ParsePrice(std::to_string(dollars) + "$/h");
    EXPECT_EQ(ParsePrice(ExactText(price))->value(), price.value()) << ExactText(price);
  }
  EXPECT_EQ(ExactText(Bytes(16e9)), "16GB");
}

TEST(QuantityText, ShortTextHasThreeDigits) {
  EXPECT_EQ(ShortText(Bytes(512)), "512 B");
  EXPECT_EQ(ShortText(Bytes(16.24e9)), "16.2 GB");
  EXPECT_EQ(ShortText(Bytes(999.9e9)), "1.00 TB");
  EXPECT_EQ(ShortText(Seconds(0.01234)), "12.3 ms");
  EXPECT_EQ(ShortText(Seconds(0.0000004)), "0.40 us");
  EXPECT_EQ(ShortCount(17e9), "17.0 B");
  EXPECT_EQ(ShortCount(830), "830");
}

// A formula that mixes units does not compile; the others have the right dimensions.
TEST(Units, DimensionsFollowFromTheFormula) {
  const Seconds time = Bytes(10) / BytesPerSecond(5);
  EXPECT_EQ(time.value(), 2);
  const Dollars cost = DollarsPerSecond(3) * time;
  EXPECT_EQ(cost.value(), 6);
  EXPECT_EQ(Flops(8) / FlopsPerSecond(2), Seconds(4));
  EXPECT_EQ(Bytes(1) / kNoLimit, Seconds(0));
  const double ratio = Bytes(6) / Bytes(3);
  EXPECT_EQ(ratio, 2);
}

}  // namespace
}  // namespace eps::planner
