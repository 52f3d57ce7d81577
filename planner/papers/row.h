#ifndef EPS_PLANNER_PAPERS_ROW_H_
#define EPS_PLANNER_PAPERS_ROW_H_

// What a paper says and what the planner computes, side by side: the rows of
// `eps plan --reproduce=PAPER`, which are its tests, too.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps::planner {

enum class Source {
  kPrinted,  // stands in the paper's text, tables or equations
  kFigure,   // read off one of its figures
  kDerived,  // follows from what it prints, by our arithmetic
};
const char* SourceName(Source source);  // "printed", "figure", "derived"

struct Row {
  std::string id;    // unique within its paper, stable: "l2l.eq1.train.u2"
  std::string what;  // one line with the unit: "training time of a minibatch, u = 2, s"
  Source source = Source::kPrinted;
  double paper = 0;
  double ours = 0;
  // Relative, of `paper`; 0: equal but for the last digits that a double has. Nothing: shown for
  // comparison and not judged, because the paper lacks an input that would decide it; `note` says
  // which.
  std::optional<double> tolerance;
  std::string note;

  // (ours - paper) / paper; their plain difference where paper is 0.
  double difference() const;
  bool judged() const { return tolerance.has_value(); }
  bool ok() const;  // true if it is not judged
};

// The papers by the names that `eps plan --reproduce` takes, in the order of the rows' pages.
std::vector<std::string> PaperNames();
// The rows of a paper, computed anew. InvalidArgument for an unknown name, with the known ones.
absl::StatusOr<std::vector<Row>> RowsOf(absl::string_view paper);

// One line per row under a heading, and how many are reached, missed and not judged.
std::string RowsToText(absl::string_view paper, const std::vector<Row>& rows);
// An array of {id, what, source, paper, ours, tolerance, ok}, and "note" where there is one;
// tolerance is null where a row is not judged.
std::string RowsToJson(const std::vector<Row>& rows);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_ROW_H_
