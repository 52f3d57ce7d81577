#ifndef EPS_BASE_CONFIG_COMMAND_LINE_H_
#define EPS_BASE_CONFIG_COMMAND_LINE_H_

// Parses the arguments of the commands that take a configuration.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/drivers/driver_lease.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eps {

// A configuration key and its value.
using Setting = std::pair<std::string, std::string>;

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
  bool overwrite = false;      // replace the run in the output folder; if the command trains
  bool allow_changes = false;  // resume with other data, another model or seed; likewise
  DriverLease driver_lease;    // of the `eps driver` that started this command; likewise
};

// Parses the arguments after the command's name: --key=value or --key value, where a boolean may
// stand alone. InvalidArgument names an unknown option and the nearest known one, or the key of a
// setting that other trainers call so.
absl::StatusOr<CommandLine> ParseCommandLine(const ConfigCommand& command,
                                             const std::vector<std::string>& arguments);

// As above, for a command with options of its own, which `app` has. An own option wins over a short
// form of the same name.
absl::StatusOr<CommandLine> ParseCommandLine(const ConfigCommand& command, CLI::App* app,
                                             const std::vector<std::string>& arguments);

// Returns the value of a list key with quoted items, because they may contain commas and spaces:
// ["a", "b, c"].
std::string ListText(const std::vector<std::string>& items);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_COMMAND_LINE_H_
