#include "optimizer/plugin/check/plugin_check.h"

#include "base/plugin/check/check_process.h"
#include "optimizer/plugin/check/report_lines.h"

namespace eps {

absl::StatusOr<PluginReport> CheckPlugin(const std::string& path,
                                         const PluginCheckOptions& options) {
  return ReportOf<ReportReader>(path, "check", options);
}

absl::StatusOr<PluginReport> DescribePlugin(const std::string& path,
                                            const PluginCheckOptions& options) {
  return ReportOf<ReportReader>(path, "describe", options);
}

}  // namespace eps
