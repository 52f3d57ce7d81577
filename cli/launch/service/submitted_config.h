#ifndef EPS_CLI_LAUNCH_SERVICE_SUBMITTED_CONFIG_H_
#define EPS_CLI_LAUNCH_SERVICE_SUBMITTED_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/config/config.h"

namespace eps {

// Reads the configuration of a job on the board. It says what the job computes; machines, folders
// and addresses are the choice of whoever runs drivers, servers and workers. InvalidArgument, with
// `origin` and the line, for a key that a submitted job may not set, and for everything that
// Config::MergeYaml refuses.
absl::StatusOr<Config> ReadSubmittedConfig(const std::string& yaml, const std::string& origin);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVICE_SUBMITTED_CONFIG_H_
