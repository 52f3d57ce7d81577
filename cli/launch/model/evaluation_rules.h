#ifndef EPS_CLI_LAUNCH_MODEL_EVALUATION_RULES_H_
#define EPS_CLI_LAUNCH_MODEL_EVALUATION_RULES_H_

#include <string>

#include "absl/status/status.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"

namespace eps {

// Checks what a run does with its evaluations. InvalidArgument names the key: for a metric that the
// model does not have, and for settings that compare evaluations where there are none.
absl::Status CheckEvaluations(const JobSpec& spec, const Config& config);

// Says which figures an evaluation gives beside the loss, and when they end the run; may be empty.
// REQUIRES that CheckEvaluations returns OK.
std::string FiguresText(const JobSpec& spec, const Config& config);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_MODEL_EVALUATION_RULES_H_
