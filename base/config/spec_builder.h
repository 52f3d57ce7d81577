#ifndef EPS_BASE_CONFIG_SPEC_BUILDER_H_
#define EPS_BASE_CONFIG_SPEC_BUILDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"
#include "base/job/plugin_spec.h"

namespace eps {

// The weights that training starts from: the spec's initial values, or those of a file.
enum class StartWeights { kNew, kGiven };

// The plug-ins that a configuration names, as a job's spec describes them; empty for those that it
// does not use.
struct JobPlugins {
  PluginSpec updater;  // optimizer.plugin
  std::string codec;   // quantization.plugin: the complete name of the codec
};

// Whether gradients of some kind of tensor use the codec in quantization.plugin.
bool UsesPluginCodec(const QuantizationConfig& config);

// Builds the job spec of a configuration: fills in open settings, and checks every value that
// defines bits, the batch equation and the table of modes. InvalidArgument names the key, or both
// keys that give the same setting. Read the model and the data first; the order of `data` comes
// from the configuration. `workers` is the default of training.parts. The result is valid.
absl::StatusOr<JobSpec> BuildJobSpec(const Config& config, const ModelSpec& model,
                                     const DataSpec& data, uint32_t workers,
                                     StartWeights weights = StartWeights::kNew,
                                     const JobPlugins& plugins = JobPlugins());

// Replaces the settings that depend on the data, the weights and the workers by those of `spec`,
// which was built from `config`. A later run with the result has the same spec.
void KeepResolved(const JobSpec& spec, Config* config);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_SPEC_BUILDER_H_
