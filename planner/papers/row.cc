#include "planner/papers/row.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "planner/papers/papers.h"

namespace eps::planner {
namespace {

constexpr double kRounding = 1e-12;  // relative rounding of doubles, allowed at a tolerance of 0

// A paper and its rows.
struct Paper {
  const char* name;
  const char* title;
  std::vector<Row> (*rows)();
};
constexpr Paper kPapers[] = {
    {"l2l", "L2L: Training Large Neural Networks with Constant Memory", &L2lRows},
    {"nntile", "NNTile", &NntileRows},
    {"smart-infinity", "Smart-Infinity", &SmartInfinityRows},
    {"jitq", "JIT-Q", &JitqRows},
};

const char* TitleOf(absl::string_view paper) {
  for (const Paper& p : kPapers) {
    if (p.name == paper) return p.title;
  }
  return "";
}

const char* VerdictOf(const Row& row) {
  if (!row.judged()) return "shown";
  return row.ok() ? "ok" : "MISSED";
}

// Returns "+1.3 %", or the plain difference where the paper's value is 0.
std::string DifferenceText(const Row& row) {
  if (row.paper == 0) return absl::StrFormat("%+.3g", row.ours);
  return absl::StrFormat("%+.2f %%", 100 * row.difference());
}

}  // namespace

const char* SourceName(Source source) {
  switch (source) {
    case Source::kPrinted:
      return "printed";
    case Source::kFigure:
      return "figure";
    case Source::kDerived:
      return "derived";
  }
  return "unknown";
}

double Row::difference() const { return paper == 0 ? ours : (ours - paper) / std::abs(paper); }

bool Row::ok() const { return !judged() || std::abs(difference()) <= *tolerance + kRounding; }

std::vector<std::string> PaperNames() {
  std::vector<std::string> names;
  for (const Paper& paper : kPapers) names.emplace_back(paper.name);
  return names;
}

absl::StatusOr<std::vector<Row>> RowsOf(absl::string_view paper) {
  for (const Paper& p : kPapers) {
    if (p.name == paper) return p.rows();
  }
  return absl::InvalidArgumentError(absl::StrCat("--reproduce: unknown paper ", paper,
                                                 "; known: ", absl::StrJoin(PaperNames(), ", ")));
}

std::string RowsToText(absl::string_view paper, const std::vector<Row>& rows) {
  size_t width = 0;
  size_t shown = 0;
  size_t missed = 0;
  for (const Row& row : rows) {
    width = std::max(width, row.what.size());
    if (!row.judged()) ++shown;
    if (!row.ok()) ++missed;
  }
  const int columns = static_cast<int>(width);
  std::string text = absl::StrFormat("%s\n%-*s %-8s %12s %12s %11s %10s\n", TitleOf(paper), columns,
                                     "", "source", "paper", "ours", "difference", "tolerance");
  for (const Row& row : rows) {
    absl::StrAppend(
        &text,
        absl::StrFormat("%-*s %-8s %12.6g %12.6g %11s %10s %s\n", columns, row.what,
                        SourceName(row.source), row.paper, row.ours, DifferenceText(row),
                        row.judged() ? absl::StrFormat("%.3g %%", 100 * *row.tolerance) : "-",
                        VerdictOf(row)));
    if (!row.note.empty()) absl::StrAppend(&text, "    ", row.note, "\n");
  }
  absl::StrAppend(&text, rows.size() - shown - missed, " reached, ", missed, " missed, ", shown,
                  " shown and not judged\n");
  return text;
}

std::string RowsToJson(const std::vector<Row>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json object;
    object["id"] = row.id;
    object["what"] = row.what;
    object["source"] = SourceName(row.source);
    object["paper"] = row.paper;
    object["ours"] = row.ours;
    object["tolerance"] = nullptr;
    object["ok"] = nullptr;
    if (row.judged()) {
      object["tolerance"] = *row.tolerance;
      object["ok"] = row.ok();
    }
    if (!row.note.empty()) object["note"] = row.note;
    array.push_back(std::move(object));
  }
  return array.dump(2) + "\n";
}

}  // namespace eps::planner
