#ifndef EPS_BASE_JOB_LAYOUT_MODEL_LAYOUT_H_
#define EPS_BASE_JOB_LAYOUT_MODEL_LAYOUT_H_

// The tensors and stages of a model: what a worker's programs and a server's chunks agree on.

#include "absl/status/status.h"
#include "base/job/job_spec.h"

namespace eps {

// Fills spec->tensors, groups ("decay": rank 2, "no_decay": rank 1) and stages from spec->model, as
// its family in base/job/models lays them out. InvalidArgument names a hyperparameter of the model
// that is out of bounds; the spec is then unchanged.
absl::Status BuildLayout(double weight_decay, JobSpec* spec);

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_MODEL_LAYOUT_H_
