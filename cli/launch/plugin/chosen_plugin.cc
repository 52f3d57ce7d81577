#include "cli/launch/plugin/chosen_plugin.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/launch/siblings.h"
#include "compression/plugin/check/codec_check.h"
#include "compression/plugin/codec_plugin.h"
#include "optimizer/plugin/check/plugin_check.h"
#include "optimizer/plugin/plugin_parameters.h"

namespace eps {
namespace {

// Puts the key, with its colon, before the error of a plug-in.
absl::Status WithKey(absl::string_view key, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(key, status.message()));
}

absl::StatusOr<PluginSpec> ChooseUpdater(const OptimizerConfig& optimizer) {
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
  const absl::StatusOr<PluginReport> plugin =
      DescribePlugin(optimizer.plugin, ChildOfEps("updater"));
  if (!plugin.ok()) return WithKey("optimizer.plugin: ", plugin.status());
  return ChooseParameters(*plugin, optimizer.plugin_parameters);
}

// Returns the complete name of the codec.
absl::StatusOr<std::string> ChooseCodec(const QuantizationConfig& quantization) {
  const bool chosen = UsesPluginCodec(quantization);
  if (chosen == quantization.plugin.empty()) {
    return absl::InvalidArgumentError(
        chosen ? "quantization.plugin: expected the file of a codec for gradients=plugin"
               : absl::StrCat("quantization.plugin: found ", quantization.plugin,
                              ", but no gradients use it; set quantization.gradients=plugin"));
  }
  if (!chosen) return std::string();
  const absl::StatusOr<CodecReport> codec = DescribeCodec(quantization.plugin, ChildOfEps("codec"));
  if (!codec.ok()) return WithKey("quantization.plugin: ", codec.status());
  return CodecNameOf(*codec);
}

}  // namespace

PluginCheckOptions ChildOfEps(const std::string& command) {
  PluginCheckOptions options;
  options.child = {OwnPath(), command, kPluginChild};
  return options;
}

absl::StatusOr<JobPlugins> ChoosePlugins(const Config& config) {
  JobPlugins plugins;
  EPS_ASSIGN_OR_RETURN(plugins.updater, ChooseUpdater(config.optimizer));
  EPS_ASSIGN_OR_RETURN(plugins.codec, ChooseCodec(config.quantization));
  return plugins;
}

}  // namespace eps
