#ifndef EPS_CLI_COMMANDS_PLAN_COMMAND_H_
#define EPS_CLI_COMMANDS_PLAN_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eps {

// `eps plan`: whether and how a configuration trains on given machines, or, with --reproduce, what
// the planner makes of a paper's numbers. `arguments` come after "plan". ResourceExhausted (exit
// code 71) if the plan does not fit, after it has been printed.
absl::Status RunPlanCommand(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_PLAN_COMMAND_H_
