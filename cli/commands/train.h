#ifndef EPS_CLI_COMMANDS_TRAIN_H_
#define EPS_CLI_COMMANDS_TRAIN_H_

#include "absl/status/status.h"
#include "cli/launch/run_config.h"

namespace eps {

// `eps train`: plans a run, starts servers or attaches to them, starts workers, and drives the job
// (cli/driver/job_driver.h) to its end. Errors name the child that died. Returns when the job is
// done, or after the first SIGINT or SIGTERM once the running step is complete and written. A
// second signal exits at once with code 130. No child outlives the call. Call it once per process.
absl::Status RunTrain(const RunConfig& run);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_TRAIN_H_
