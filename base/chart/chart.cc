#include "base/chart/chart.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps {
namespace {

// Colors that can be told apart on a light and on a dark page.
constexpr const char* kColors[] = {"#3b7dbf", "#e0883a", "#5a9a5f", "#c45a55", "#8b6fae",
                                   "#8a7560", "#d48ec0", "#7f7f7f", "#b5a642", "#4fb0bf"};
constexpr const char* kStyle =
    ":root{color-scheme:light dark;--page:#fff;--text:#1b1b1b;--soft:#f3f3f3;--grid:#d8d8d8;"
    "--dim:#5c5c5c}"
    "@media(prefers-color-scheme:dark){:root{--page:#16181b;--text:#e8e8e8;--soft:#23262a;"
    "--grid:#3c4046;--dim:#a5a8ad}}"
    "body{font:14px/1.5 sans-serif;margin:24px auto;max-width:980px;padding:0 16px;"
    "background:var(--page);color:var(--text)}"
    "svg{display:block;max-width:100%;height:auto}svg text{font-size:13px;fill:var(--text)}"
    "svg .dim{fill:var(--dim)}svg .grid{stroke:var(--grid)}svg .limit{stroke:var(--text)}"
    "table{border-collapse:collapse}td,th{padding:3px 16px 3px 0;text-align:left;"
    "vertical-align:top;border-bottom:1px solid var(--grid)}"
    "pre{background:var(--soft);padding:12px;overflow-x:auto}.dim{color:var(--dim)}";

constexpr double kNameWidth = 190;
constexpr double kBarWidth = 520;
constexpr double kRowHeight = 26;

constexpr double kChartWidth = 940;
constexpr double kLeft = 70;    // of the plot
constexpr double kRight = 925;  // of the plot
constexpr double kTop = 24;     // of the plot
constexpr double kBottom = 270;
constexpr double kChartHeight = 316;

const char* ColorOf(size_t i) { return kColors[i % std::size(kColors)]; }

// Maps a range of values to a range of pixels.
struct Scale {
  double low, high;    // values
  double first, last;  // pixels
  double operator()(double value) const {
    return first + (value - low) / (high - low) * (last - first);
  }
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool IsFinite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

std::string Axes(const Scale& x, const Scale& y, const std::vector<double>& x_ticks,
                 const std::vector<double>& y_ticks) {
  std::string svg;
  for (const double tick : y_ticks) {
    absl::StrAppendFormat(&svg,
                          "<line class='grid' x1='%g' y1='%.2f' x2='%g' y2='%.2f'/><text "
                          "class='dim' x='%g' y='%.2f' text-anchor='end' data-y='%.17g'>%g</text>",
                          kLeft, y(tick), kRight, y(tick), kLeft - 8, y(tick) + 4, tick, tick);
  }
  for (const double tick : x_ticks) {
    if (tick < x.low || tick > x.high) continue;
    absl::StrAppendFormat(
        &svg, "<text class='dim' x='%.2f' y='%g' text-anchor='middle' data-x='%.17g'>%.15g</text>",
        x(tick), kBottom + 18, tick, tick);
  }
  return svg;
}

// Returns the lines of a series: one per run of finite points.
std::string Lines(const Series& series, const Scale& x, const Scale& y, const char* color) {
  std::string svg;
  std::string points;
  const auto end_line = [&] {
    if (!points.empty()) {
      absl::StrAppend(&svg, "<polyline data-name='", EscapeHtml(series.name),
                      "' fill='none' stroke='", color, "' stroke-width='1.6' points='", points,
                      "'/>");
    }
    points.clear();
  };
  for (const auto& point : series.points) {
    if (!IsFinite(point)) {
      end_line();
      continue;
    }
    absl::StrAppendFormat(&points, "%s%.2f,%.2f", points.empty() ? "" : " ", x(point.first),
                          y(point.second));
    if (!series.dots) continue;
    absl::StrAppendFormat(
        &svg,
        "<circle cx='%.2f' cy='%.2f' r='4' fill='%s'><title>%s at %.15g: %.6g</title>"
        "</circle>",
        x(point.first), y(point.second), color, EscapeHtml(series.name), point.first, point.second);
  }
  end_line();
  return svg;
}

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string HtmlPage(absl::string_view title, absl::string_view body) {
  return absl::StrCat(
      "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width'><title>",
      EscapeHtml(title), "</title><style>", kStyle, "</style></head><body><h1>", EscapeHtml(title),
      "</h1>", body, "</body></html>\n");
}

std::string BarChart(const std::vector<Bar>& bars) {
  double most = 0;
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const BarPiece& piece : bar.pieces) sum += piece.value;
    most = std::max({most, sum, bar.limit});
  }
  if (most == 0) most = 1;
  const double width = kNameWidth + kBarWidth + 260;
  const double height = kRowHeight * static_cast<double>(bars.size()) + 6;
  std::string svg = absl::StrFormat("<svg width='%g' height='%g' viewBox='0 0 %g %g' role='img'>",
                                    width, height, width, height);
  for (size_t row = 0; row < bars.size(); ++row) {
    const Bar& bar = bars[row];
    const double top = kRowHeight * static_cast<double>(row) + 4;
    absl::StrAppendFormat(&svg, "<text x='0' y='%g'>%s</text>", top + 14, EscapeHtml(bar.name));
    double x = kNameWidth;
    for (size_t i = 0; i < bar.pieces.size(); ++i) {
      const BarPiece& piece = bar.pieces[i];
      const double piece_width = kBarWidth * piece.value / most;
      absl::StrAppendFormat(
          &svg, "<rect x='%.2f' y='%g' width='%.2f' height='18' fill='%s'><title>%s</title></rect>",
          x, top, piece_width, ColorOf(i), EscapeHtml(absl::StrCat(piece.name, ": ", piece.text)));
      x += piece_width;
    }
    if (bar.limit > 0) {
      const double at = kNameWidth + kBarWidth * bar.limit / most;
      absl::StrAppendFormat(&svg, "<line class='limit' x1='%.2f' y1='%g' x2='%.2f' y2='%g'/>", at,
                            top - 3, at, top + 21);
      x = std::max(x, at);
    }
    absl::StrAppendFormat(&svg, "<text x='%.2f' y='%g'>%s</text>", x + 6, top + 14,
                          EscapeHtml(bar.text));
  }
  return svg + "</svg>";
}

std::string BarLegend(const std::vector<std::string>& names) {
  std::string legend = "<p>";
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppendFormat(&legend, "<span style='color:%s'>&#9632;</span> %s &nbsp; ", ColorOf(i),
                          EscapeHtml(names[i]));
  }
  return legend + "</p>";
}

std::string LineChart(const std::vector<Series>& series, const std::string& x_name,
                      const std::string& y_name, bool from_zero) {
  Range xs, ys;
  for (const Series& line : series) {
    for (const auto& point : line.points) {
      if (!IsFinite(point)) continue;
      xs.Add(point.first);
      ys.Add(point.second);
    }
  }
  if (xs.low > xs.high) return "<p class='dim'>There is no figure yet.</p>";
  if (from_zero) ys.Add(0);
  const std::vector<double> x_ticks = RoundTicks(xs.low, xs.high);
  const std::vector<double> y_ticks = RoundTicks(ys.low, ys.high);
  // The x axis ends at the last point; a single point is in its middle.
  if (xs.low == xs.high) xs = {xs.low - 1, xs.high + 1};
  const Scale x{xs.low, xs.high, kLeft, kRight};
  const Scale y{y_ticks.front(), y_ticks.back(), kBottom, kTop};
  std::string svg = absl::StrFormat("<svg width='%g' height='%g' viewBox='0 0 %g %g' role='img'>",
                                    kChartWidth, kChartHeight, kChartWidth, kChartHeight);
  absl::StrAppend(&svg, Axes(x, y, x_ticks, y_ticks));
  absl::StrAppendFormat(&svg,
                        "<text class='dim' x='0' y='12'>%s</text><text class='dim' x='%g' y='%g' "
                        "text-anchor='end'>%s</text>",
                        EscapeHtml(y_name), kRight, kChartHeight - 8, EscapeHtml(x_name));
  std::vector<std::string> names;
  for (size_t i = 0; i < series.size(); ++i) {
    absl::StrAppend(&svg, Lines(series[i], x, y, ColorOf(i)));
    names.push_back(series[i].name);
  }
  return absl::StrCat(svg, "</svg>", names.size() > 1 ? BarLegend(names) : "");
}

std::vector<std::pair<double, double>> MeanPoints(
    const std::vector<std::pair<double, double>>& points, size_t most) {
  std::vector<std::pair<double, double>> means;
  const size_t each = (points.size() + most - 1) / most;
  if (each <= 1) return points;
  for (size_t begin = 0; begin < points.size(); begin += each) {
    const size_t end = std::min(begin + each, points.size());
    double sum = 0;
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!IsFinite(points[i])) continue;
      sum += points[i].second;
      ++count;
    }
    if (count > 0) means.emplace_back(points[end - 1].first, sum / static_cast<double>(count));
  }
  return means;
}

std::vector<double> RoundTicks(double low, double high) {
  if (!(high > low)) {
    const double half = low == 0 ? 1 : std::abs(low) / 2;
    low -= half;
    high += half;
  }
  const double rough = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1., 2., 5.}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step);
  const double last = std::ceil(high / step);
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

}  // namespace eps
