#ifndef EPS_PLANNER_SIMULATOR_REPORT_H_
#define EPS_PLANNER_SIMULATOR_REPORT_H_

// Formats the result of a simulation as text and as JSON. Pure functions.

#include <string>

#include "planner/simulator/scenario.h"
#include "planner/simulator/simulator.h"

namespace eps::planner::simulator {

// Returns the scenario in one line, how the time was spent, what was busy, and the recorded events.
std::string SimulationToText(const Scenario& scenario, const SimulationResult& result);

// Returns one JSON object with all times in seconds. Its keys are the scenario's stages,
// parameters, workers, servers, parts, mode, replay and seed; the fields of SimulationResult; and
// goodput, steps_per_hour, bottleneck, utilization by resource, and step with its duration, its
// forward time and its busiest machines.
std::string SimulationToJson(const Scenario& scenario, const SimulationResult& result);

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_REPORT_H_
