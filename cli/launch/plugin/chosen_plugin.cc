#include "cli/launch/plugin/chosen_plugin.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/launch/siblings.h"
#include "optimizer/plugin/plugin_parameters.h"

namespace eps {

PluginCheckOptions ChildOfEps() {
  PluginCheckOptions options;
  options.child = {OwnPath(), "updater", kPluginChild};
  return options;
}

absl::StatusOr<PluginSpec> ChoosePlugin(const OptimizerConfig& optimizer) {
  const bool chosen = optimizer.name == OptimizerName::kPlugin;
  if (chosen == optimizer.plugin.empty()) {
    return absl::InvalidArgumentError(
        chosen ? "optimizer.plugin: expected the file of an updater for optimizer.name=plugin"
               : absl::StrCat("optimizer.plugin: found ", optimizer.plugin,
                              ", but optimizer.name=", NameOf(optimizer.name),
                              "; set optimizer.name=plugin to use the updater"));
  }
  if (!chosen) {
    if (optimizer.plugin_parameters.empty()) return PluginSpec();
    return absl::InvalidArgumentError(
        "optimizer.plugin_parameters: expected only with optimizer.name=plugin");
  }
  const absl::StatusOr<PluginReport> plugin = DescribePlugin(optimizer.plugin, ChildOfEps());
  if (!plugin.ok()) {
    return absl::Status(plugin.status().code(),
                        absl::StrCat("optimizer.plugin: ", plugin.status().message()));
  }
  return ChooseParameters(*plugin, optimizer.plugin_parameters);
}

}  // namespace eps
