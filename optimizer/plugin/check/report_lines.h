#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_REPORT_LINES_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_REPORT_LINES_H_

// The lines of base/plugin/check/report_lines.h for an updater. Its own lines of the description:
//
//   field NAME
//   parameter NAME USUAL LEAST MOST
//
// The BYTES of `speed` are those of an element, and a round times `update` and the plain loop.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/plugin/check/report_lines.h"
#include "optimizer/plugin/check/plugin_check.h"

namespace eps {

// The names of all checks, in their order.
const std::vector<std::string>& PluginCheckNames();

// Reads the lines of a child that checks an updater. Thread-compatible.
class ReportReader final : public ReportLineReader {
 public:
  ReportReader();

  // Ends the report as ReportLineReader::End does, and returns it.
  absl::StatusOr<PluginReport> Finish(absl::string_view end, absl::string_view reason);

 private:
  bool TakeFact(absl::string_view word, absl::string_view rest) override;

  PluginReport report_;  // its fields and parameters, until the end
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_REPORT_LINES_H_
