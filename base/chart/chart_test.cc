#include "base/chart/chart.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

TEST(Chart, EscapesEveryText) {
  EXPECT_EQ(EscapeHtml("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  const std::string evil = "<b>'x";
  for (const std::string& html :
       {HtmlPage(evil, ""), BarChart({{evil, evil, {{evil, 1, evil}}, 0}}), BarLegend({evil}),
        LineChart({{evil, {{1, 2}}, true}, {evil, {}, false}}, evil, evil, false)}) {
    EXPECT_THAT(html, HasSubstr("&lt;b&gt;&#39;x"));
    EXPECT_THAT(html, Not(HasSubstr(evil)));
  }
}

TEST(Chart, BarsShareOneScale) {
  const std::string svg =
      BarChart({{"a", "1", {{"p", 1, "1"}}, 0}, {"b", "4", {{"p", 1, "1"}, {"q", 3, "3"}}, 0}});
  EXPECT_THAT(svg, HasSubstr("x='190.00' y='4' width='130.00'"));
  EXPECT_THAT(svg, HasSubstr("x='190.00' y='30' width='130.00'"));
  EXPECT_THAT(svg, HasSubstr("x='320.00' y='30' width='390.00'"));
}

TEST(Chart, LinesReachTheirValues) {
  // The plot is 70..925 wide and 270..24 high; the y axis goes from 0 to 10.
  const std::string svg = LineChart({{"a", {{0, 0}, {5, 5}, {10, 10}}, false}}, "x", "y", false);
  EXPECT_THAT(svg, HasSubstr("points='70.00,270.00 497.50,147.00 925.00,24.00'"));
}

TEST(Chart, InterruptsLinesWhereNothingIsFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = LineChart({{"a", {{0, 0}, {1, nan}, {2, 10}}, false}}, "x", "y", false);
  EXPECT_THAT(svg, HasSubstr("points='70.00,270.00'"));
  EXPECT_THAT(svg, HasSubstr("points='925.00,24.00'"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(LineChart({{"a", {{0, nan}}, false}}, "x", "y", true), HasSubstr("no figure yet"));
}

TEST(Chart, MeansKeepEveryPoint) {
  EXPECT_THAT(MeanPoints({{1, 1}, {2, 3}, {3, 5}, {4, 7}, {5, 9}}, 3),
              ElementsAre(Pair(2, 2), Pair(4, 6), Pair(5, 9)));
  EXPECT_THAT(MeanPoints({{1, 1}, {2, NAN}, {3, 5}}, 2), ElementsAre(Pair(2, 1), Pair(3, 5)));
  EXPECT_THAT(MeanPoints({{1, 1}, {2, 3}}, 2), ElementsAre(Pair(1, 1), Pair(2, 3)));
}

TEST(Chart, TicksAreRoundAndEnclose) {
  EXPECT_THAT(RoundTicks(0, 10), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(RoundTicks(1.2, 5.4), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(RoundTicks(3, 3), ElementsAre(1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace eps
