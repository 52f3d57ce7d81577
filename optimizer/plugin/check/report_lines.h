#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_REPORT_LINES_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_REPORT_LINES_H_

// The lines that the child of a check writes to its parent, one event each:
//
//   error CODE TEXT             the object cannot be loaded; CODE is an absl::StatusCode
//   sha256 DIGEST               the description of the loaded object
//   name NAME
//   field NAME
//   parameter NAME USUAL LEAST MOST
//   described
//   begin CHECK                 a check begins
//   at TEXT                     what the check does next; several in a check
//   passed CHECK                or:
//   failed CHECK TEXT
//   speed ELEMENTS BYTES        of the measurement; then one line for each round, in seconds
//   round UPDATE PLAIN
//   end                         the last line

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "optimizer/plugin/check/plugin_check.h"

namespace eps {

// The descriptor that the child writes to.
inline constexpr int kReportDescriptor = 3;

// Limits of what the parent accepts; the child writes much less.
inline constexpr size_t kMaxReportBytes = size_t{256} << 10;
inline constexpr size_t kMaxReportLine = 1024;

// The names of all checks, in their order.
const std::vector<std::string>& PluginCheckNames();

// Writes lines to kReportDescriptor. Allowed in a fenced process. If the parent is gone, the
// process ends.
void WriteReportLine(absl::string_view line);

// Reads the lines of a child, and believes nothing: the plug-in may have written them. Each text
// ends up with printable ASCII only. Thread-compatible.
class ReportReader {
 public:
  ReportReader();

  // Takes the next bytes. InvalidArgument for bytes that the child would not write.
  absl::Status Take(absl::string_view bytes);

  // Ends the report. If the child has not said that it is done, the check that was running, or else
  // the next one, fails with `reason`: how the process ended, and why. Returns the report, or the
  // error that the child has told; InvalidArgument with `end`, how the process ended, if the object
  // was not even described.
  absl::StatusOr<PluginReport> Finish(absl::string_view end, absl::string_view reason);

 private:
  absl::Status TakeLine(absl::string_view line);
  absl::Status TakeDescription(absl::string_view word, absl::string_view rest);
  absl::Status TakeCheck(absl::string_view word, absl::string_view rest);
  absl::Status TakeSpeed(absl::string_view word, absl::string_view rest);

  PluginReport report_;
  absl::Status error_;
  std::string pending_;  // the beginning of a line
  size_t taken_ = 0;     // bytes
  bool described_ = false;
  bool ended_ = false;
  PluginCheck* running_ = nullptr;
  std::string at_;
  std::vector<double> update_rounds_;  // seconds
  std::vector<double> plain_rounds_;
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_REPORT_LINES_H_
