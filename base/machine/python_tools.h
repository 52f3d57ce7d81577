#ifndef EPS_BASE_MACHINE_PYTHON_TOOLS_H_
#define EPS_BASE_MACHINE_PYTHON_TOOLS_H_

// Finds the Python that runs the project's tools (the room python/).

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eps {

// How to run a tool.
struct PythonTools {
  std::string interpreter;               // for execvp
  std::vector<std::string> environment;  // NAME=value of what replaces variables of this process
};

// Where to look.
struct PythonPlaces {
  std::string program;            // the path of this program
  std::string folder;             // the current folder
  std::string eps_python = {};    // EPS_PYTHON, or empty
  std::string python_path = {};   // PYTHONPATH, or empty
  std::string library_path = {};  // LD_LIBRARY_PATH, or empty
  static PythonPlaces Current();  // of this process
};

// Looks for the source tree in the folders above the program and above the current one. The
// interpreter is EPS_PYTHON, or the one in the tree's third_party/.oracles. NotFound with the
// command that installs it.
absl::StatusOr<PythonTools> FindPythonTools(const PythonPlaces& places);

// Replaces this process with `python -m module arguments`. Returns only on an error.
absl::Status BecomePythonTool(const PythonTools& tools, const std::string& module,
                              const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_BASE_MACHINE_PYTHON_TOOLS_H_
