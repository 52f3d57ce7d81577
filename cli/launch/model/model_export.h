#ifndef EPS_CLI_LAUNCH_MODEL_MODEL_EXPORT_H_
#define EPS_CLI_LAUNCH_MODEL_MODEL_EXPORT_H_

#include "absl/status/status.h"
#include "base/config/config.h"

namespace eps {

// Returns whether a run has to export its model: model.path names a model that is neither built in
// nor exported, or, with lora.r, one without adapters; and checkpoint.dir a folder for its program.
bool NeedsExport(const Config& config);

// Runs `eps model export`, for training.precision and lora.*, and points model.path at the folder
// that it makes, checkpoint.dir/model. A run that continues takes the folder that is there.
// REQUIRES NeedsExport(*config) and the claim of checkpoint.dir (output_folder.h). Not thread-safe:
// it waits for a process, at most an hour.
//
// NotFound without a Python for the tool; InvalidArgument if the run continues with another model;
// other errors are those of the tool.
absl::Status ExportModelOfRun(Config* config);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_MODEL_MODEL_EXPORT_H_
