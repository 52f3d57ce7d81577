#ifndef EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_
#define EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/config/spec_builder.h"
#include "base/plugin/check/plugin_check.h"

namespace eps {

// The argument of `eps updater` and `eps codec` that makes the process a child which looks at a
// plug-in; no user types it.
inline constexpr char kPluginChild[] = "check-child";

// Options whose child is this program, which must be eps, with a command: "updater" or "codec".
PluginCheckOptions ChildOfEps(const std::string& command);

// Returns the parts of the job's spec for the plug-ins that a configuration names; nothing for the
// optimizers and codecs of this tree. Each object is loaded in a fenced process of its own.
// InvalidArgument with the key if optimizer.name and optimizer.plugin do not fit, or
// quantization.plugin and the codecs of gradients; other errors are those of DescribePlugin,
// DescribeCodec and ChooseParameters.
absl::StatusOr<JobPlugins> ChoosePlugins(const Config& config);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLUGIN_CHOSEN_PLUGIN_H_
