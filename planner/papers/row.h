#ifndef EPS_PLANNER_PAPERS_ROW_H_
#define EPS_PLANNER_PAPERS_ROW_H_

// Compares what a paper states with what the planner computes: the rows of `eps plan
// --reproduce=PAPER`, which the tests check as well.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps::planner {

// The origin of a paper's value.
enum class Source {
  kPrinted,  // printed in the paper's text, tables or equations
  kFigure,   // read off one of its figures
  kDerived,  // follows from printed values by our arithmetic
};
const char* SourceName(Source source);  // "printed", "figure", "derived"

// One value of a paper next to ours.
struct Row {
  std::string id;    // unique within its paper, stable: "l2l.eq6.training.u2"
  std::string what;  // one line with the unit: "forward, the same, u 2, samples/s"
  Source source = Source::kPrinted;
  double paper = 0;
  double ours = 0;
  // Relative to `paper`; 0 requires equality up to the rounding of doubles. Without a tolerance the
  // row is shown for comparison and not judged, because the paper lacks an input that would decide
  // it; `note` names that input.
  std::optional<double> tolerance;
  std::string note;

  // Returns (ours - paper) / |paper|, or the plain difference where paper is 0.
  double difference() const;
  bool judged() const { return tolerance.has_value(); }
  bool ok() const;  // true if the row is not judged: it is not missed
};

// Returns the names of papers that `eps plan --reproduce` accepts, in the order of their rows.
std::vector<std::string> PaperNames();
// Computes the rows of a paper. Returns InvalidArgument for an unknown name, with the known ones.
absl::StatusOr<std::vector<Row>> RowsOf(absl::string_view paper);

// Returns a heading, one line per row, and the numbers of rows reached, missed and not judged.
std::string RowsToText(absl::string_view paper, const std::vector<Row>& rows);
// Returns an array of {id, what, source, paper, ours, tolerance, ok}, with "note" where there is
// one; tolerance and ok are null for a row that is not judged.
std::string RowsToJson(const std::vector<Row>& rows);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_ROW_H_
