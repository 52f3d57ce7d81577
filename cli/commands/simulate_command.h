#ifndef EPS_CLI_COMMANDS_SIMULATE_COMMAND_H_
#define EPS_CLI_COMMANDS_SIMULATE_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/plan.h"
#include "planner/simulator/scenario.h"

namespace eps {

// `eps simulate`: a run of a configuration on given machines with failures, stragglers and workers
// that come and go. `arguments` come after "simulate".
absl::Status RunSimulateCommand(const std::vector<std::string>& arguments);

// The plan's stages and machines as the simulator takes them: with the kind of worker that a step
// waits for, its cuts and its log. What goes wrong is left at its defaults: nothing does.
planner::simulator::Scenario ScenarioOf(const planner::Plan& plan,
                                        const planner::Hardware& hardware);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_SIMULATE_COMMAND_H_
