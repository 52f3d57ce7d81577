#ifndef EPS_CLI_COMMANDS_TRAIN_H_
#define EPS_CLI_COMMANDS_TRAIN_H_

#include "absl/status/status.h"
#include "cli/launch/run_config.h"

namespace eps {

// `eps train`: plans a run, starts servers or attaches to them, starts workers, and drives the job
// (cli/driver/job_driver.h) to its end. Replaces workers that somebody stops, and restarts children
// that are killed if the job survives their loss. Errors name the child that died, or say why the
// servers gave the job up, with the exit code that they give. Returns OK when the job is done.
// After the first SIGINT or SIGTERM it returns once the running step is complete and written:
// Cancelled with exit code 130 or 143 if steps are left. A second signal exits at once with its own
// code. No child outlives the call. Call it once per process.
absl::Status RunTrain(const RunConfig& run);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_TRAIN_H_
