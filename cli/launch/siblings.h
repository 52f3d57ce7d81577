#ifndef EPS_CLI_LAUNCH_SIBLINGS_H_
#define EPS_CLI_LAUNCH_SIBLINGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps {

// The path of this program.
std::string OwnPath();

// The path of another program of the project: beside this one (an installation), in the build
// tree's folder of its room, or in this program's runfiles. NotFound lists where it was looked for.
absl::StatusOr<std::string> FindSibling(const std::string& name);

// Becomes the sibling `name` with `arguments`, in this process: its exit code is ours. Returns only
// with an error.
absl::Status BecomeSibling(const std::string& name, const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SIBLINGS_H_
