#ifndef EPS_CLI_COMMANDS_PLUGIN_PLUGIN_COMMAND_H_
#define EPS_CLI_COMMANDS_PLUGIN_PLUGIN_COMMAND_H_

// The parts of `eps updater` and `eps codec` that are the same for every kind of plug-in.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/plugin/check/plugin_check.h"
#include "nlohmann/json.hpp"

namespace eps {

// Returns options whose child is `eps COMMAND`.
PluginCheckOptions ChildOfCommand(const std::string& command, double deadline_seconds);

// Writes a plug-in that works as it is into the folder `out`: files of these names and texts, in
// which `name` replaces the word `template_name`. Creates the folder and those above it.
// InvalidArgument if `name` is no name of a plug-in; AlreadyExists if the folder is not empty, or
// is a file; otherwise the errors of base/files.
absl::Status WriteNewPlugin(const std::string& name, const std::string& out,
                            const std::string& template_name,
                            const std::vector<std::pair<std::string, const char*>>& files);

// Return checks as lines of text and as a JSON array, and a figure.
std::string ChecksText(const std::vector<PluginCheck>& checks);
nlohmann::ordered_json ChecksJson(const std::vector<PluginCheck>& checks);
std::string RateText(const PluginRate& gigabytes_per_second);
nlohmann::ordered_json RateJson(const PluginRate& rate);

// Returns a status with exit code kDifferent for the first failed check of a plug-in, such as
// "updater rmsprop"; OK if there is none.
absl::Status StatusOfChecks(const std::string& path, const std::string& plugin,
                            const std::vector<PluginCheck>& checks);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_PLUGIN_PLUGIN_COMMAND_H_
