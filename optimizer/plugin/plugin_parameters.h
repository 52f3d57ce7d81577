#ifndef EPS_OPTIMIZER_PLUGIN_PLUGIN_PARAMETERS_H_
#define EPS_OPTIMIZER_PLUGIN_PLUGIN_PARAMETERS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/plugin_spec.h"
#include "optimizer/plugin/updater_plugin.h"

namespace eps {

// Returns the part of a job's spec for a plug-in with these parameters, such as
// "alpha=0.9 eps=1e-6", separated by spaces or commas; the others have their usual values.
// InvalidArgument, with the key optimizer.plugin_parameters, for a parameter that the plug-in does
// not have, with those that it has, one that is set twice, and a value out of its range.
absl::StatusOr<PluginSpec> ChooseParameters(const PluginDescription& plugin,
                                            absl::string_view text);

// FailedPrecondition if a spec with the plug-in's digest describes another one. The text of a job
// may come from anywhere, and the arrays of a chunk are as many as it says.
absl::Status CheckDescribes(const PluginSpec& spec, const UpdaterPlugin& plugin);

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_PLUGIN_PARAMETERS_H_
