#ifndef EPS_CHECKPOINT_CONVERT_OPTIMIZER_CONVERSION_H_
#define EPS_CHECKPOINT_CONVERT_OPTIMIZER_CONVERSION_H_

// Turns the state of a job into that of a job with another optimizer (`eps checkpoint convert`).

#include <memory>

#include "absl/status/statusor.h"
#include "base/job/optimizers.h"
#include "checkpoint/job_state.h"

namespace eps {

// The optimizer of the new job, and whether its state begins at zero.
struct ConversionOptions {
  OptimizerName optimizer{};
  bool reset_state = false;
};

// Returns `from`, whose ownership it takes, with another optimizer: its spec, its configuration and
// its state. Weights, residuals and the border stay. For an optimizer that adapts, the mode becomes
// sealed.
//
// Without `reset_state`, parameters that both optimizers have keep their values, and the state
// becomes what FindConversion says (optimizer/rules/conversions.h).
//
// With it, all fields are zero, no update counts as made, and the new parameters have their
// defaults; the learning rate stays.
//
// InvalidArgument if the job has that optimizer already, or if the new spec is not valid;
// FailedPrecondition, naming both optimizers, if the state cannot be converted.
absl::StatusOr<std::unique_ptr<JobState>> ConvertOptimizer(std::unique_ptr<JobState> from,
                                                           const ConversionOptions& options);

}  // namespace eps

#endif  // EPS_CHECKPOINT_CONVERT_OPTIMIZER_CONVERSION_H_
