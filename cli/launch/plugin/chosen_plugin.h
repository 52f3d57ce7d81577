#ifndef EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_
#define EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/plugin_spec.h"
#include "optimizer/plugin/check/plugin_check.h"

namespace eps {

// The argument of `eps updater` that makes the process a child which looks at a plug-in; no user
// types it.
inline constexpr char kPluginChild[] = "check-child";

// Options whose child is this program, which must be eps.
PluginCheckOptions ChildOfEps();

// Returns the part of the job's spec for the plug-in updater that a configuration names; nothing
// for the optimizers of this tree. The object is loaded in a fenced process of its own.
// InvalidArgument with the key if optimizer.name and optimizer.plugin do not fit; other errors are
// those of DescribePlugin and ChooseParameters.
absl::StatusOr<PluginSpec> ChoosePlugin(const OptimizerConfig& optimizer);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_
