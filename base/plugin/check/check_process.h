#ifndef EPS_BASE_PLUGIN_CHECK_CHECK_PROCESS_H_
#define EPS_BASE_PLUGIN_CHECK_CHECK_PROCESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/plugin/check/plugin_check.h"
#include "base/plugin/check/report_lines.h"

namespace eps {

// How a child ended: in general, and with the reason if a plug-in was running.
struct CheckProcessEnd {
  std::string end;
  std::string reason;
};

// Starts the child of `options` for the object `path`, and gives the reader all that it writes.
// `work` is "check" or "describe". Kills the child at the deadline. InvalidArgument for lines that
// the child would not write; Internal if no child can be started. Thread-safe.
absl::StatusOr<CheckProcessEnd> RunCheckProcess(const std::string& path, const std::string& work,
                                                const PluginCheckOptions& options,
                                                ReportLineReader* reader);

// Returns the status with the path before its message, unless it is there.
absl::Status WithPath(const std::string& path, const absl::Status& status);

// Runs a child and returns what Finish of the kind's reader makes of its lines. Errors begin with
// the path.
template <class Reader>
auto ReportOf(const std::string& path, const std::string& work, const PluginCheckOptions& options)
    -> decltype(Reader().Finish("", "")) {
  Reader reader;
  const auto end = RunCheckProcess(path, work, options, &reader);
  if (!end.ok()) return WithPath(path, end.status());
  auto report = reader.Finish(end->end, end->reason);
  if (!report.ok()) return WithPath(path, report.status());
  return report;
}

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_CHECK_PROCESS_H_
