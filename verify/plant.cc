#include "verify/plant.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {
namespace {

constexpr PlantInfo kPlants[] = {
    {Plant::kSwappedTree, "swapped_tree",
     "sums over the parts first, then over the micro-batches of a part; needs two of each"},
    {Plant::kSequentialTree, "sequential_tree",
     "adds micro-batches and parts one after the other; needs four of either"},
    {Plant::kDroppedUse, "dropped_use",
     "leaves out the last use of a tensor that two stages use; needs a tied model"},
    {Plant::kDoubledPart, "doubled_part", "counts part 0 twice; needs two parts"},
    {Plant::kSwappedMicroBatches, "swapped_micro_batches",
     "exchanges the data of micro-batches 1 and 2 of each step; needs three"},
    {Plant::kWrongSample, "wrong_sample",
     "uses the first micro-batch of the following step in each step"},
    {Plant::kWrongMaskKey, "wrong_mask_key",
     "draws the dropout masks of a stage with the key of the next one; needs dropout"},
    {Plant::kStaleWeights, "stale_weights",
     "computes stage 1 with the weights of the previous step; shows from step 2 on"},
    {Plant::kWrongLossScale, "wrong_loss_scale", "multiplies the gradient by two"},
    {Plant::kWrongBiasCorrection, "wrong_bias_correction",
     "corrects the bias of the moments as in the following update"},
    {Plant::kWrongClip, "wrong_clip",
     "clips with the norm of the current step; needs lagged clipping that takes effect"},
    {Plant::kDecayOnBias, "decay_on_bias",
     "applies weight decay to biases and norms too; needs weight decay"},
};

}  // namespace

absl::Span<const PlantInfo> Plants() { return kPlants; }

absl::StatusOr<Plant> ParsePlant(absl::string_view name) {
  std::string names;
  for (const PlantInfo& info : kPlants) {
    if (name == info.name) return info.plant;
    absl::StrAppend(&names, names.empty() ? "" : ", ", info.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--plant: there is no mistake \"", name, "\"; known are ", names));
}

}  // namespace eps
