#include "base/job/layout/step_memory.h"

#include <algorithm>

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
  for (uint32_t leaves = training.micro_batches; leaves > 1; leaves = leaves / 2 + leaves % 2)
    ++gradients;
  return gradients;
}

}  // namespace eps
