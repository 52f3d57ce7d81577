#ifndef EPS_BASE_JOB_LEGALITY_H_
#define EPS_BASE_JOB_LEGALITY_H_

// Which combinations of training.mode, training.clip and training.nonfinite exist. A refusal is
// InvalidArgument, names both keys and says what to change. training.replay excludes no mode: its
// only value, rollback, needs nothing of one.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/keys.h"

namespace eps {

// An open mode becomes the first one that allows `clip` and `nonfinite` (eager, then sealed).
absl::StatusOr<Mode> ResolveMode(Auto<Mode> mode, Clip clip, Nonfinite nonfinite);
absl::Status CheckLegal(const TrainingSpec& training);

}  // namespace eps

#endif  // EPS_BASE_JOB_LEGALITY_H_
