#ifndef EPS_BASE_CONFIG_SPEC_BUILDER_H_
#define EPS_BASE_CONFIG_SPEC_BUILDER_H_

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"

namespace eps {

// The job spec of a configuration: checks every value that defines bits, the batch equation (all
// four numbers in the message) and the mode table; errors name the key. `model` and `data` were
// read by the caller; `workers` is the default of training.parts. The result is valid.
absl::StatusOr<JobSpec> BuildJobSpec(const Config& config, const ModelSpec& model,
                                     uint64_t data_tokens, const std::string& data_sha256,
                                     uint32_t workers);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_SPEC_BUILDER_H_
