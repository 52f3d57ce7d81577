#ifndef EPS_CLI_LAUNCH_TOOLS_WANDB_EXPORT_H_
#define EPS_CLI_LAUNCH_TOOLS_WANDB_EXPORT_H_

// The offline run of Weights & Biases that a run writes with metrics.wandb
// (python/eps_metrics/wandb_run.py). Not thread-safe: the functions wait for a process.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"

namespace eps {

// Checks before a run that it can be written: with metrics.wandb, InvalidArgument without
// checkpoint.dir, and an error that says what installs the package wandb without it. REQUIRES the
// claim of checkpoint.dir (output_folder.h).
absl::Status CheckWandb(const Config& config);

// Writes the metrics of the run in `folder` and returns the line to print. Errors are those of
// RunPythonTool.
absl::StatusOr<std::string> WriteWandbRun(const std::string& folder);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_TOOLS_WANDB_EXPORT_H_
