#ifndef EPS_BASE_CHART_CHART_H_
#define EPS_BASE_CHART_CHART_H_

// Pages with charts: one HTML file without external references or scripts, whose charts are inline
// SVG. The colors follow the reader's light or dark scheme. Pure functions. All texts are escaped
// here: pass them plain.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

// Replaces the characters that HTML reads as markup: & < > " '.
std::string EscapeHtml(absl::string_view text);

// Returns a whole page with the heading `title`. `body` is HTML.
std::string HtmlPage(absl::string_view title, absl::string_view body);

// One piece of a bar. `text` is the value as the reader sees it when pointing at the piece.
struct BarPiece {
  std::string name;
  double value = 0;  // finite, at least 0
  std::string text;
};

// One row of a bar chart: pieces side by side.
struct Bar {
  std::string name;
  std::string text;  // printed after the bar
  std::vector<BarPiece> pieces;
  double limit = 0;  // marked by a line if above 0
};

// Returns a horizontal bar chart, one row per bar. All rows have the same scale.
std::string BarChart(const std::vector<Bar>& bars);
// Returns the legend of bars whose pieces have these names, in this order.
std::string BarLegend(const std::vector<std::string>& names);

// One line of a line chart. A point that is not finite interrupts the line.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y), x ascending
  bool dots = false;  // draw a dot at each point, for series of few points
};

// Returns a line chart with axes and a legend; without a finite point, a sentence that says so.
// `x_name` and `y_name` are the axes' names with their units. With `from_zero` the y axis begins at
// 0.
std::string LineChart(const std::vector<Series>& series, const std::string& x_name,
                      const std::string& y_name, bool from_zero);

// Returns at most `most` points of which each is the mean of equally many consecutive points (the
// last one of the remaining ones); `points` itself if it has no more than that. x is the last one
// of the points. Leaves out points that are not finite. REQUIRES most > 0.
std::vector<std::pair<double, double>> MeanPoints(
    const std::vector<std::pair<double, double>>& points, size_t most);

// Returns round values that divide [low, high], about five of them, ascending: 1, 2 or 5 times a
// power of ten apart. The first is at most `low`, the last at least `high`. REQUIRES finite values.
std::vector<double> RoundTicks(double low, double high);

}  // namespace eps

#endif  // EPS_BASE_CHART_CHART_H_
