#ifndef EPS_BASE_CONFIG_SPEC_BUILDER_H_
#define EPS_BASE_CONFIG_SPEC_BUILDER_H_

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"

namespace eps {

// The weights that training starts from: the spec's initial values, or those of a file.
enum class StartWeights { kNew, kGiven };

// Builds the job spec of a configuration: fills in open settings, and checks every value that
// defines bits, the batch equation and the table of modes. InvalidArgument names the key, or both
// keys that give the same setting. Read the model and the data first; the order of `data` comes
// from the configuration. `workers` is the default of training.parts, `plugin` describes the
// updater in optimizer.plugin. The result is valid.
absl::StatusOr<JobSpec> BuildJobSpec(const Config& config, const ModelSpec& model,
                                     const DataSpec& data, uint32_t workers,
                                     StartWeights weights = StartWeights::kNew,
                                     const PluginSpec& plugin = PluginSpec());

// Replaces the settings that depend on the data, the weights and the workers by those of `spec`,
// which was built from `config`. A later run with the result has the same spec.
void KeepResolved(const JobSpec& spec, Config* config);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_SPEC_BUILDER_H_
