#ifndef EPS_VERIFY_PLANT_H_
#define EPS_VERIFY_PLANT_H_

// Mistakes that can be planted into the reference, so that a test can show that the comparison
// would notice each of them in a run: planted here or made there, the two sides differ alike.

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

struct PlantInfo {
  Plant plant;
  const char* name;
  const char* what;  // the mistake, and what a job needs for it to show
};

// All of them but kNone.
absl::Span<const PlantInfo> Plants();

// InvalidArgument with all names.
absl::StatusOr<Plant> ParsePlant(absl::string_view name);

}  // namespace eps

#endif  // EPS_VERIFY_PLANT_H_
