#ifndef EPS_CLI_LAUNCH_PLANNED_RUN_H_
#define EPS_CLI_LAUNCH_PLANNED_RUN_H_

// What `eps plan` and `eps simulate` begin with: a configuration that is not run, on machines that
// need not be there.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/hardware.h"
#include "planner/plan.h"

namespace eps {

// `train` are arguments of eps train, whose data are not read.
absl::StatusOr<planner::Plan> PlanTrainArguments(const planner::Hardware& hardware,
                                                 const std::vector<std::string>& train);

// The description in a file, or the example of that name. InvalidArgument if it is empty.
absl::StatusOr<planner::Hardware> ReadHardware(const std::string& name);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLANNED_RUN_H_
