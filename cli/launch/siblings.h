#ifndef EPS_CLI_LAUNCH_SIBLINGS_H_
#define EPS_CLI_LAUNCH_SIBLINGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps {

// Returns the path of this program.
std::string OwnPath();

// Returns the path of another program of the project: next to this one (an installation), in its
// folder of the build tree, or in this program's runfiles. NotFound lists the places searched.
absl::StatusOr<std::string> FindSibling(const std::string& name);

// Replaces this process with the program `name` and its `arguments`. Returns only on an error.
absl::Status BecomeSibling(const std::string& name, const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SIBLINGS_H_
