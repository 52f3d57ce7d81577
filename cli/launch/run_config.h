#ifndef EPS_CLI_LAUNCH_RUN_CONFIG_H_
#define EPS_CLI_LAUNCH_RUN_CONFIG_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "base/config/command_line.h"
#include "base/config/config.h"

namespace eps {

struct RunConfig {
  Config config;
  std::string origin;       // where the file layer came from: a path or "the quickstart settings"
  bool quickstart = false;  // the file layer is the quickstart's
};

// Layers the configuration of a command: flags > `environment` > file > defaults. The file layer
// is --config; else, when training resumes and no model is given, the configuration that the
// checkpoint was written with; else, when training without a model, the quickstart's settings.
// Errors as Config's; NotFound if the file, or the checkpoint to resume from, is missing.
absl::StatusOr<RunConfig> ResolveConfig(const CommandLine& line,
                                        const std::map<std::string, std::string>& environment);

// The variables of this process.
std::map<std::string, std::string> ProcessEnvironment();

// The folder that `checkpoint.resume` names, empty for "none". "latest" is as LatestCheckpoint
// (checkpoint/checkpoint_folders.h) finds it in `checkpoint.dir`: empty, to start anew, if there is none
// yet, so that a job that is started again and again with the same arguments goes on each time.
// NotFound for a folder that is not a complete checkpoint.
absl::StatusOr<std::string> ResumeFolder(const CheckpointConfig& checkpoint);

// The page that `eps config reference` prints.
std::string ConfigReference();

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_RUN_CONFIG_H_
