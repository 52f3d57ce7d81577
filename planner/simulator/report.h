#ifndef EPS_PLANNER_SIMULATOR_REPORT_H_
#define EPS_PLANNER_SIMULATOR_REPORT_H_

// What a simulated run was like, for a terminal and for programs.

#include <string>

#include "planner/simulator/scenario.h"
#include "planner/simulator/simulator.h"

namespace eps::planner::simulator {

// The scenario in a line, how the time went, what was busy, and the events that were kept.
std::string SimulationToText(const Scenario& scenario, const SimulationResult& result);

// One object; all times are in seconds. The keys are those of SimulationResult, and goodput,
// bottleneck, utilization by resource, and step with its duration and its busiest machines.
std::string SimulationToJson(const Scenario& scenario, const SimulationResult& result);

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_REPORT_H_
