#include "cli/launch/tools/python_run.h"

#include <sys/wait.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/machine/python_tools.h"
#include "base/status_macros.h"
#include "cli/launch/child_process.h"
#include "cli/launch/run_config.h"

namespace eps {
namespace {

constexpr int kNoProgram = 127;  // how /usr/bin/env ends without the program

}  // namespace

absl::Status RunPythonTool(const PythonCall& call) {
  absl::StatusOr<PythonTools> tools = FindPythonTools(PythonPlaces::Current());
  if (!tools.ok()) {
    return absl::Status(tools.status().code(), absl::StrCat(call.name, " cannot run: there is ",
                                                            tools.status().message()));
  }
  ChildOptions options;
  options.name = call.name;
  options.argv = {"/usr/bin/env"};
  options.argv.insert(options.argv.end(), tools->environment.begin(), tools->environment.end());
  options.argv.insert(options.argv.end(), {tools->interpreter, "-m", call.module});
  options.argv.insert(options.argv.end(), call.arguments.begin(), call.arguments.end());
  for (const auto& [name, value] : ProcessEnvironment()) {
    options.environment.push_back(absl::StrCat(name, "=", value));
  }
  options.log_path = call.log_path;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child,
                       ChildProcess::Start(std::move(options)));
  if (!child->WaitExit(std::chrono::steady_clock::now() + call.longest)) {
    return absl::DeadlineExceededError(absl::StrCat(call.name, " takes more than ",
                                                    call.longest.count(), " seconds; its log is ",
                                                    child->log_path()));
  }
  const int ended = child->wait_status();
  if (WIFEXITED(ended) && WEXITSTATUS(ended) == kNoProgram) {
    return absl::NotFoundError(absl::StrCat(call.name, " cannot run: there is no ",
                                            tools->interpreter,
                                            "; set EPS_PYTHON to a Python that has the packages"));
  }
  return child->Failure();
}

}  // namespace eps
