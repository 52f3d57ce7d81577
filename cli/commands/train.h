#ifndef EPS_CLI_COMMANDS_TRAIN_H_
#define EPS_CLI_COMMANDS_TRAIN_H_

#include "absl/status/status.h"
#include "cli/launch/run_config.h"

namespace eps {

// `eps train`: plans, starts or attaches to servers, creates the job, sets its weights, starts the
// workers, then supervises: a progress line and a metrics.jsonl line per step, checkpoints at gated
// borders, and an error that names the process when a child dies. Returns when the job is done, or
// after the first SIGINT or SIGTERM when the running step is complete and written; the second one
// ends the process with 130 at once. No child outlives it.
absl::Status RunTrain(const RunConfig& run);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_TRAIN_H_
