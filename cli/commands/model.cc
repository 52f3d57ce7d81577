// `eps model {export,check}`: exports a model of PyTorch as a program, or compares its program with
// transformers. Both are Python programs of python/eps_models, which this process becomes.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/config/app_arguments.h"
#include "base/machine/python_tools.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr char kHelp[] =
    "A model of PyTorch as a program of stages, which a worker runs without Python.\n"
    "\n"
    "  eps model export DIR [--task=TASK] [--variant=NAME] [--dtype=TYPE] [--out=OUT]\n"
    "  eps model check DIR [--json]\n"
    "\n"
    "DIR is a Hugging Face folder, ORG/NAME of a model in the Hugging Face cache, or\n"
    "FILE.py:FUNCTION; eps model export --help lists all options.\n";

}  // namespace

absl::Status RunModel(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    return absl::InvalidArgumentError("eps model: a command is missing: export, check");
  }
  const std::string& command = arguments[0];
  if (command == "--help" || command == "-h") {
    std::fputs(kHelp, stdout);
    return absl::OkStatus();
  }
  if (command != "export" && command != "check") {
    return UnknownCommand(absl::StrCat("model ", command), {"model export", "model check"});
  }
  EPS_ASSIGN_OR_RETURN(const PythonTools tools, FindPythonTools(PythonPlaces::Current()));
  return BecomePythonTool(tools, absl::StrCat("eps_models.", command),
                          {arguments.begin() + 1, arguments.end()});
}

}  // namespace eps
