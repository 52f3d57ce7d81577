#ifndef EPS_CLI_LAUNCH_RUN_CONFIG_H_
#define EPS_CLI_LAUNCH_RUN_CONFIG_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/command_line.h"
#include "base/config/config.h"

namespace eps {

// The resolved configuration of a command.
struct RunConfig {
  Config config;
  std::string origin;          // the file layer: a path, or "the quickstart settings"
  bool quickstart = false;     // whether the file layer is the quickstart's
  bool overwrite = false;      // --overwrite
  bool allow_changes = false;  // --allow-changes
  DriverLease driver_lease;    // of the `eps driver` that started this run
};

// Layers the configuration of a command: flags > `environment` > file > defaults. The file layer is
// --config. Without --config, a command that trains and has no model uses the configuration stored
// in the checkpoint that it resumes from, or else the quickstart's settings. NotFound if the file
// or the checkpoint is missing; other errors are those of Config.
absl::StatusOr<RunConfig> ResolveConfig(const CommandLine& line,
                                        const std::map<std::string, std::string>& environment);

// Returns the environment variables of this process.
std::map<std::string, std::string> ProcessEnvironment();

// Returns the environment for a child that is a program of EPS, as NAME=value: without the
// variables that are settings of this process, and without those in which a launcher passes its
// rank.
std::vector<std::string> EnvironmentWithoutConfig();

// Returns the page that `eps config reference` prints.
std::string ConfigReference();

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_RUN_CONFIG_H_
