#ifndef EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_
#define EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/plugin_spec.h"

namespace eps {

// Loads the plug-in updater that a configuration names into this process, which runs its code, and
// returns what the job's spec says of it; nothing for the optimizers of this tree. InvalidArgument
// with the key if optimizer.name and optimizer.plugin do not fit; other errors are those of
// LoadUpdaterPlugin and ChooseParameters.
absl::StatusOr<PluginSpec> ChoosePlugin(const OptimizerConfig& optimizer);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_
