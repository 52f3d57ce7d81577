#ifndef EPS_VERIFY_PLANT_H_
#define EPS_VERIFY_PLANT_H_

// Mistakes that can be planted in the reference, so that a test can show that the comparison
// notices each of them. The comparison is symmetric: a mistake in the reference produces the same
// difference as the same mistake in a run.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

enum class Plant {
  kNone,
  kSwappedTree,
  kSequentialTree,
  kDroppedUse,
  kDoubledPart,
  kSwappedMicroBatches,
  kWrongSample,
  kWrongMaskKey,
  kStaleWeights,
  kWrongLossScale,
  kWrongBiasCorrection,
  kWrongClip,
  kDecayOnBias,
};

// A planted mistake as `--plant` names and lists it.
struct PlantInfo {
  Plant plant;
  const char* name;
  const char* what;  // the mistake, and what a job needs for it to have an effect
};

// All mistakes except kNone.
absl::Span<const PlantInfo> Plants();

// Returns InvalidArgument, listing all names, if there is no such mistake.
absl::StatusOr<Plant> ParsePlant(absl::string_view name);

}  // namespace eps

#endif  // EPS_VERIFY_PLANT_H_
