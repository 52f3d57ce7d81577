#ifndef EPS_BASE_JOB_LEGALITY_H_
#define EPS_BASE_JOB_LEGALITY_H_

// Which combinations of training.mode, training.clip, training.nonfinite, training.precision and
// optimizer.name exist, and in which precision a model computes. A refusal is InvalidArgument,
// names the keys and says what to change. training.replay excludes no mode: its only value,
// rollback, needs nothing of one.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/keys.h"
#include "base/job/models/model_program.h"
#include "base/job/models/model_spec.h"
#include "base/job/optimizers.h"

namespace eps {

// An open mode becomes the first one (eager, then sealed) that allows the settings.
absl::StatusOr<Mode> ResolveMode(Auto<Mode> mode, const TrainingSettings& settings,
                                 OptimizerName optimizer);
absl::Status CheckLegal(const TrainingSpec& training, OptimizerName optimizer);

// The element type in which the workers of a job compute.
ElementType ElementTypeOf(Precision precision);
// A program computes in the element type with which it was exported, GPT-2 in all of them, and
// every other model in FP32.
absl::Status CheckPrecision(Precision precision, const ModelSpec& model);

}  // namespace eps

#endif  // EPS_BASE_JOB_LEGALITY_H_
