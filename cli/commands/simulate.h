#ifndef EPS_CLI_COMMANDS_SIMULATE_H_
#define EPS_CLI_COMMANDS_SIMULATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/plan.h"
#include "planner/simulator/scenario.h"

namespace eps {

// `eps simulate`: simulates a run on given machines with failures, stragglers, and workers that
// join and leave. `arguments` are those after "simulate".
absl::Status RunSimulate(const std::vector<std::string>& arguments);

// Returns the plan's stages and machines for the simulator, with the kind of worker that a step
// waits for, its cuts and its log. The scenario has no failures.
planner::simulator::Scenario ScenarioOf(const planner::Plan& plan,
                                        const planner::Hardware& hardware);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_SIMULATE_H_
