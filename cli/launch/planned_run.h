#ifndef EPS_CLI_LAUNCH_PLANNED_RUN_H_
#define EPS_CLI_LAUNCH_PLANNED_RUN_H_

// Plans a configuration on machines that need not exist, without a run, for `eps plan` and
// `eps simulate`.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/command_line.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"
#include "planner/hardware.h"
#include "planner/plan.h"

namespace eps {

// Plans a run of `eps train` with this command line. Reads no data.
absl::StatusOr<planner::Plan> PlanCommandLine(const planner::Hardware& hardware,
                                              const CommandLine& line);

// Returns the planned bytes of each kind of memory of all servers together, in the plan's order.
// These bytes do not depend on the machines. Errors as planner::PlanMemory.
absl::StatusOr<std::vector<std::pair<std::string, double>>> PlannedServerMemory(
    const Config& config, const JobSpec& spec);

// Returns the description in the file `name`, or the example of that name. InvalidArgument if
// `name` is empty.
absl::StatusOr<planner::Hardware> ReadHardware(const std::string& name);
// Returns its storage devices that update, those of the first server. InvalidArgument if it has
// none.
absl::StatusOr<planner::StorageDevices> ReadUpdatingStorage(const std::string& name);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLANNED_RUN_H_
