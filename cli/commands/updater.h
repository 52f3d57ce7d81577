#ifndef EPS_CLI_COMMANDS_UPDATER_H_
#define EPS_CLI_COMMANDS_UPDATER_H_

// `eps updater {new,show,check}` begins, describes and checks a plug-in updater
// (docs/guides/write_an_updater.md). Needs no servers and no model. None of them runs code of the
// plug-in in this process.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "optimizer/plugin/check/plugin_check.h"

namespace eps {

// Runs `eps updater` with the arguments after its name. InvalidArgument for malformed arguments and
// for objects that are no updater; a status with exit code kDifferent if a check fails; other
// errors are those of WriteNewUpdater and of the files.
absl::Status RunUpdater(const std::vector<std::string>& arguments);

// Writes an updater that works as it is into the folder `out`: NAME.c, eps_updater.h, Makefile and
// README.md. Errors as WriteNewPlugin (plugin/plugin_command.h).
absl::Status WriteNewUpdater(const std::string& name, const std::string& out);

// The updater of a storage device, to compare a plug-in with.
struct DeviceUpdater {
  std::string hardware;         // the description of machines that has it
  double bytes_per_second = 0;  // of gradients and state that it reads
};

// Return what a plug-in says of itself, and what checks have found: as lines of text, or as a JSON
// object. The latter compare a measurement with `device`, if there is one.
std::string DescriptionText(const PluginReport& report);
std::string CheckText(const PluginReport& report, const std::optional<DeviceUpdater>& device);
std::string CheckJson(const PluginReport& report, const std::optional<DeviceUpdater>& device);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_UPDATER_H_
