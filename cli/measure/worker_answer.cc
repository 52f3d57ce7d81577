#include "cli/measure/worker_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/launch/child_process.h"
#include "cli/launch/run_config.h"
#include "cli/launch/siblings.h"

namespace eps {

absl::StatusOr<nlohmann::json> AskWorker(const std::string& command,
                                         const std::vector<std::string>& arguments,
                                         const std::string& folder, std::chrono::minutes timeout) {
  EPS_ASSIGN_OR_RETURN(const std::string program, FindSibling("eps-worker"));
  ChildOptions child;
  child.name = absl::StrCat("eps-worker ", command);
  child.argv = {program, command};
  child.argv.insert(child.argv.end(), arguments.begin(), arguments.end());
  for (const auto& [name, value] : ProcessEnvironment()) {
    child.environment.push_back(absl::StrCat(name, "=", value));
  }
  child.log_path = absl::StrCat(folder, "/", command, ".log");
  child.read_stdout = true;
  EPS_ASSIGN_OR_RETURN(const auto process, ChildProcess::Start(std::move(child)));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  EPS_ASSIGN_OR_RETURN(const std::string line, process->WaitForLine("{", deadline));
  process->WaitExit(deadline);
  nlohmann::json answer = nlohmann::json::parse("{" + line, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object()) return answer;
  return absl::InternalError(absl::StrCat("eps-worker ", command, " printed {", line));
}

}  // namespace eps
