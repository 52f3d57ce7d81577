#ifndef EPS_BASE_CONFIG_SPEC_BUILDER_H_
#define EPS_BASE_CONFIG_SPEC_BUILDER_H_

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"

namespace eps {

// Builds the job spec of a configuration: fills in open settings, and checks every value that
// defines bits, the batch equation and the table of modes. InvalidArgument names the key. Read the
// model and the data first; the order of `data` comes from the configuration. `workers` is the
// default of training.parts. The result is valid.
absl::StatusOr<JobSpec> BuildJobSpec(const Config& config, const ModelSpec& model,
                                     const DataSpec& data, uint32_t workers);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_SPEC_BUILDER_H_
