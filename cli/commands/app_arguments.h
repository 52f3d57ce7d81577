#ifndef EPS_CLI_COMMANDS_APP_ARGUMENTS_H_
#define EPS_CLI_COMMANDS_APP_ARGUMENTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eps {

// Parses the arguments after the command's name. If they ask for help, prints it and returns false.
// InvalidArgument names the command and says how to get its help.
absl::StatusOr<bool> ParseApp(CLI::App* app, const std::string& command,
                              const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_APP_ARGUMENTS_H_
