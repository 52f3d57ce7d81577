#ifndef EPS_BASE_CONFIG_PARAMETER_GROUPS_H_
#define EPS_BASE_CONFIG_PARAMETER_GROUPS_H_

#include <vector>

#include "absl/status/status.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"

namespace eps {

// Puts the tensors of a spec with its layout (BuildLayout) into groups of their own, by
// optimizer.groups. Vectors, norms and biases stay without weight decay. Pure. InvalidArgument,
// with the number of the rule, for an expression that is wrong or finds no tensor, or whose tensors
// all belong to earlier rules, and for a frozen rule with other settings.
absl::Status ApplyGroupRules(const std::vector<GroupRule>& rules, JobSpec* spec);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_PARAMETER_GROUPS_H_
