#ifndef EPS_CLI_COMMANDS_TABLE_H_
#define EPS_CLI_COMMANDS_TABLE_H_

// The commands of `eps`. To add one, write cli/commands/NAME.cc and a row of table.cc.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eps {

// One command of `eps`.
struct Command {
  std::string name;
  std::string help;  // one line of `eps --help`
  // Runs the command with the arguments after its name. The status determines the exit code. A
  // command that has already printed its error returns a status without text.
  std::function<absl::Status(const std::vector<std::string>& arguments)> run;
};

// All commands, in the order of `eps --help`.
const std::vector<Command>& Commands();

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_TABLE_H_
