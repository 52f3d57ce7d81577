#ifndef EPS_BASE_CONFIG_APP_ARGUMENTS_H_
#define EPS_BASE_CONFIG_APP_ARGUMENTS_H_

// Parses the arguments of every command of `eps` with CLI11, so that all commands take options
// alike and suggest the nearest name for an unknown one.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eps {

// Parses the arguments after the command's name; app->get_name() is the command as typed, such as
// "eps plan". Returns the help to print if the arguments ask for it, else an empty text. Leaves
// other arguments in app->remaining() if the app allows extras.
//
// InvalidArgument, which ends with how to get the command's help, for malformed arguments; it
// suggests the nearest name for an unknown option or subcommand.
absl::StatusOr<std::string> ParseAppArguments(CLI::App* app,
                                              const std::vector<std::string>& arguments);

// Returns the long names of the app's options, with their hyphens.
std::vector<std::string> OptionNames(const CLI::App& app);

// Returns the error for a word that is not in `known`; it suggests the nearest one.
absl::Status UnknownCommand(const std::string& word, const std::vector<std::string>& known);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_APP_ARGUMENTS_H_
