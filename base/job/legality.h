#ifndef EPS_BASE_JOB_LEGALITY_H_
#define EPS_BASE_JOB_LEGALITY_H_

// Which combinations of training.mode, training.clip, training.nonfinite and training.replay exist
// (ARCHITECTURE.md, table "Modes"). A refusal names both keys and what to change.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/job_spec.h"

namespace eps {

// `mode`: auto | eager | sealed; auto takes the first that allows `clip` and `nonfinite` (eager,
// then sealed). InvalidArgument names both keys and what to change.
absl::StatusOr<Mode> ResolveMode(absl::string_view mode, Clip clip, Nonfinite nonfinite,
                                 Replay replay);
absl::Status CheckLegal(const TrainingSpec& training);

absl::StatusOr<Clip> ParseClip(absl::string_view text);
absl::StatusOr<Nonfinite> ParseNonfinite(absl::string_view text);
absl::StatusOr<Replay> ParseReplay(absl::string_view text);

}  // namespace eps

#endif  // EPS_BASE_JOB_LEGALITY_H_
