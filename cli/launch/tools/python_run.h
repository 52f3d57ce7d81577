#ifndef EPS_CLI_LAUNCH_TOOLS_PYTHON_RUN_H_
#define EPS_CLI_LAUNCH_TOOLS_PYTHON_RUN_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eps {

// A call of a tool of the room python/.
struct PythonCall {
  std::string name;                    // for errors: "eps model export"
  std::string module;                  // as of python -m
  std::vector<std::string> arguments;  // of the module
  std::string log_path;                // receives stdout and stderr; its folder exists
  std::chrono::seconds longest{3600};  // after which the call fails
};

// Runs a tool to its end. NotFound, with what installs it, without a Python for it;
// DeadlineExceeded after `longest`; other errors are the tool's, with its exit code and the last
// lines of its log. Not thread-safe: it waits for a process.
absl::Status RunPythonTool(const PythonCall& call);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_TOOLS_PYTHON_RUN_H_
