#include "base/job/layout/step_memory.h"

#include <algorithm>
#include <vector>

#include "base/job/layout/codec_table.h"
#include "base/job/models/model_family.h"

namespace eps {

double ActivationBytes(const JobSpec& spec) {
  const ModelFamily& family = FamilyOf(spec.model.type);
  const TrainingSpec& training = spec.training;
  const size_t stages = spec.stages.size();
  const double samples = training.micro_batch_size;
  const double head_tokens =
      std::min<double>(samples * training.seq_len, training.loss_block_tokens);
  const StageShape block = {1, stages, 0, static_cast<double>(training.seq_len)};
  const StageShape head = {stages - 1, stages, 0, head_tokens};
  return std::max(samples * family.ActivationBytes(spec.model, block),
                  family.ActivationBytes(spec.model, head));
}

uint32_t SummedGradients(const TrainingSpec& training) {
  if (training.gradient_sum == GradientSum::kFused) return std::min(2u, training.micro_batches);
  uint32_t gradients = 1;
  for (uint32_t leaves = training.micro_batches; leaves > 1; leaves = leaves / 2 + leaves % 2) {
    ++gradients;
  }
  return gradients;
}

bool CanKeep(const JobSpec& spec, StageId stage) {
  if (stage.value() == 0 || stage.value() + 1 == spec.stages.size()) return false;
  if (stage < spec.LowestTrainableStage()) return false;
  if (spec.model.program == nullptr) return true;
  const std::vector<TensorUse>& uses = spec.stages[stage.value()].uses;
  return std::none_of(uses.begin(), uses.end(), [&](const TensorUse& use) {
    return WeightAxesOf(spec, use, /*backward=*/true).has_second;
  });
}

double KeptBytes(const JobSpec& spec, StageId stage, uint64_t micro_batches) {
  if (!CanKeep(spec, stage)) return 0;
  const StageShape shape = {stage.value(), spec.stages.size(), 0,
                            static_cast<double>(spec.training.seq_len)};
  double bytes = static_cast<double>(micro_batches * spec.training.micro_batch_size) *
                 FamilyOf(spec.model.type).ActivationBytes(spec.model, shape);
  if (spec.model.program == nullptr) return bytes;
  // The graph of a program refers to its weights.
  for (const TensorUse& use : spec.stages[stage.value()].uses) {
    bytes += sizeof(float) * static_cast<double>(spec.tensors[use.tensor.value()].elements());
  }
  return bytes;
}

StageId FirstKeptStage(const JobSpec& spec, uint64_t micro_batches, double room) {
  StageId first(static_cast<uint32_t>(spec.stages.size() - 1));
  while (first.value() > 1) {
    const StageId next(first.value() - 1);
    room -= KeptBytes(spec, next, micro_batches);
    if (room < 0) break;
    first = next;
  }
  return first;
}

}  // namespace eps
