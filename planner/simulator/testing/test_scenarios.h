#ifndef EPS_PLANNER_SIMULATOR_TESTING_TEST_SCENARIOS_H_
#define EPS_PLANNER_SIMULATOR_TESTING_TEST_SCENARIOS_H_

#include <cstddef>
#include <cstdint>

#include "planner/hardware.h"
#include "planner/simulator/scenario.h"
#include "planner/units.h"

namespace eps::planner::simulator {

// One worker and one server, one step over `stages` equal stages: 1 s forward, 3 s backward,
// unlimited links, servers that take no time, no failures. Nothing is fetched or pushed. A stage
// has one parameter, so a rate of kFp32 / t encodes or updates it in the time t.
Scenario ComputeOnly(size_t stages);

inline constexpr Bytes kFp32(4);
// The only worker kind and the only server kind of these scenarios.
WorkerKind& WorkerOf(Scenario* scenario);
ServerKind& ServerOf(Scenario* scenario);

// ComputeOnly in which each pass fetches `fetch` bytes (the last stage only once) and pushes `push`
// bytes.
Scenario WithBytes(size_t stages, double fetch, double push);

// A run of 10,000 workers, 5,000 servers, 128 stages with 10^12 parameters in total and 1,000
// steps, with the failure rate of the Llama 3 405B run.
Scenario LargeRun();

// A small random scenario with every feature except changes of the membership; a function of
// `seed`.
Scenario RandomScenario(uint64_t seed);

}  // namespace eps::planner::simulator

#endif  // EPS_PLANNER_SIMULATOR_TESTING_TEST_SCENARIOS_H_
