#include "base/plugin/check/check_child.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/plugin/check/report_lines.h"
#include "base/process/fence.h"
#include "base/status_macros.h"

namespace eps {
namespace {

void Describe(CheckSubject* subject) {
  subject->Describe();
  WriteReportLine("described");
}

// Returns whether all passed.
bool RunChecks(const std::vector<std::string>& names, CheckSubject* subject) {
  bool passed = true;
  for (size_t i = 0; i < names.size(); ++i) {
    WriteReportLine(absl::StrCat("begin ", names[i]));
    const std::string finding = subject->Check(i);
    passed = passed && finding.empty();
    WriteReportLine(finding.empty() ? absl::StrCat("passed ", names[i])
                                    : absl::StrCat("failed ", names[i], " ", finding));
  }
  return passed;
}

absl::Status Run(const std::vector<std::string>& names, CheckSubject* subject,
                 const std::string& path, bool checks, uint64_t speed_elements) {
  EPS_RETURN_IF_ERROR(FenceLoading());
  EPS_RETURN_IF_ERROR(subject->Load(path));
  if (!checks) {
    Describe(subject);
    return absl::OkStatus();
  }
  EPS_RETURN_IF_ERROR(subject->Prepare(speed_elements));
  EPS_RETURN_IF_ERROR(FenceProcess({.kills_mappings = true}));
  Describe(subject);
  if (RunChecks(names, subject) && speed_elements > 0) subject->Measure();
  return absl::OkStatus();
}

}  // namespace

void RunCheckChild(const std::vector<std::string>& checks, CheckSubject* subject,
                   const std::vector<std::string>& arguments) {
  PrepareForFence();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  uint64_t speed_elements = 0;
  if (arguments.size() != 3 || !absl::SimpleAtoi(arguments[2], &speed_elements)) std::_Exit(64);
  const absl::Status status =
      Run(checks, subject, arguments[0], arguments[1] == "check", speed_elements);
  WriteReportLine(
      status.ok() ? "end"
                  : absl::StrCat("error ", static_cast<int>(status.code()), " ", status.message()));
  std::_Exit(0);
}

}  // namespace eps
