#include "optimizer/plugin/check/check_child.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/process/fence.h"
#include "base/status_macros.h"
#include "optimizer/plugin/check/checks.h"
#include "optimizer/plugin/check/report_lines.h"
#include "optimizer/plugin/check/speed.h"
#include "optimizer/plugin/updater_plugin.h"

namespace eps {
namespace {

// In the order of PluginCheckNames().
constexpr std::string (*kChecks[])(CheckTools* tools) = {
    CheckBounds, CheckSplits, CheckAlignment, CheckThreads, CheckValues, CheckParameters, CheckMode,
};

void Describe(const UpdaterPlugin& plugin) {
  WriteReportLine(absl::StrCat("sha256 ", plugin.sha256));
  WriteReportLine(absl::StrCat("name ", plugin.name));
  for (const std::string& field : plugin.fields) WriteReportLine(absl::StrCat("field ", field));
  for (const PluginParameter& p : plugin.parameters) {
    WriteReportLine(
        absl::StrFormat("parameter %s %.17g %.17g %.17g", p.name, p.usual, p.least, p.most));
  }
  WriteReportLine("described");
}

absl::Status Run(const std::string& path, bool checks, uint64_t speed_elements) {
  EPS_RETURN_IF_ERROR(FenceLoading());
  EPS_ASSIGN_OR_RETURN(const UpdaterPlugin* const plugin, LoadUpdaterPlugin(path));
  if (!checks) {
    Describe(*plugin);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(CheckTools tools, CheckTools::New(plugin));
  const std::unique_ptr<SpeedTrial> speed = SpeedTrial::New(plugin, speed_elements);
  EPS_RETURN_IF_ERROR(FenceProcess({.kills_mappings = true}));
  Describe(*plugin);
  bool passed = true;
  const std::vector<std::string>& names = PluginCheckNames();
  for (size_t i = 0; i < names.size(); ++i) {
    WriteReportLine(absl::StrCat("begin ", names[i]));
    const std::string finding = kChecks[i](&tools);
    passed = passed && finding.empty();
    WriteReportLine(finding.empty() ? absl::StrCat("passed ", names[i])
                                    : absl::StrCat("failed ", names[i], " ", finding));
  }
  if (passed && speed != nullptr) speed->RunAndReport();
  WriteReportLine("end");
  // Nothing is destroyed: threads cannot be joined in every state that a plug-in may leave.
  std::_Exit(0);
}

}  // namespace

void RunPluginCheckChild(const std::vector<std::string>& arguments) {
  PrepareForFence();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  uint64_t speed_elements = 0;
  if (arguments.size() != 3 || !absl::SimpleAtoi(arguments[2], &speed_elements)) std::_Exit(64);
  const absl::Status status = Run(arguments[0], arguments[1] == "check", speed_elements);
  if (!status.ok()) {
    WriteReportLine(absl::StrCat("error ", static_cast<int>(status.code()), " ", status.message()));
  } else {
    WriteReportLine("end");
  }
  std::_Exit(0);
}

}  // namespace eps
