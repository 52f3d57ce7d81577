#ifndef EPS_CLI_PLAN_COMMAND_H_
#define EPS_CLI_PLAN_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/hardware.h"

namespace eps {

// `eps plan`: whether and how a configuration trains on given machines, or, with --reproduce, what
// the planner makes of a paper's numbers. `arguments` come after "plan". ResourceExhausted (exit
// code 71) if the plan does not fit, after it has been printed.
absl::Status RunPlanCommand(const std::vector<std::string>& arguments);

// The description in a file, or the example of that name.
absl::StatusOr<planner::Hardware> ReadHardware(const std::string& name);

}  // namespace eps

#endif  // EPS_CLI_PLAN_COMMAND_H_
