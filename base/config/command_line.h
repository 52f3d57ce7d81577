#ifndef EPS_BASE_CONFIG_COMMAND_LINE_H_
#define EPS_BASE_CONFIG_COMMAND_LINE_H_

// Parses the arguments of the `eps` commands that take a configuration.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/overrides.h"

namespace eps {

// A command that takes a configuration.
struct ConfigCommand {
  const char* name;     // as typed: "eps train"
  const char* help;     // one line
  bool trains = false;  // without --config, may use the settings of the quickstart or a checkpoint
  bool has_json = false;  // accepts --json
};

// `eps train`. Commands that pass arguments to a run parse them as arguments of this command.
inline constexpr ConfigCommand kTrainCommand = {
    "eps train", "train a model; starts what it needs on this machine", /*trains=*/true};

// The parsed arguments; short forms are replaced by configuration keys. Config checks the keys and
// values.
struct CommandLine {
  std::string help;  // text to print if --help was given, in which case nothing else is set
  bool trains = false;
  std::string config_file;        // --config
  std::vector<Setting> settings;  // in the order given
  bool json = false;
};

// Parses the arguments after the command's name. InvalidArgument names an unknown option and the
// nearest known one.
absl::StatusOr<CommandLine> ParseCommandLine(const ConfigCommand& command,
                                             const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_COMMAND_LINE_H_
