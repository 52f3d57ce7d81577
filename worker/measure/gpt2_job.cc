#include "worker/measure/gpt2_job.h"

#include "base/ids.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"

namespace eps {

absl::StatusOr<JobSpec> MeasuredJob(const MeasuredShape& shape) {
  JobSpec spec;
  Gpt2Config& c = spec.model.gpt2;
  c.n_layer = static_cast<int>(shape.layers);
  c.n_embd = static_cast<int>(shape.width);
  c.n_head = static_cast<int>(shape.heads);
  c.n_positions = static_cast<int>(shape.seq_len);
  c.vocab_size = static_cast<int>(shape.vocab);
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  spec.training.precision = shape.precision;
  spec.training.seq_len = shape.seq_len;
  spec.training.micro_batch_size = shape.samples;
  spec.training.parts = 1;
  EPS_RETURN_IF_ERROR(FamilyOf(spec.model.type).CheckTogether(spec.model));
  EPS_RETURN_IF_ERROR(BuildLayout(/*weight_decay=*/0.01, &spec));
  return spec;
}

MicroBatch MeasuredBatch(const JobSpec& spec, uint32_t samples) {
  MicroBatch batch;
  batch.step = Step(1);
  batch.samples = samples;
  batch.seq_len = spec.training.seq_len;
  const uint32_t vocab = FamilyOf(spec.model.type).vocabulary(spec.model);
  for (uint32_t i = 0; i < batch.samples * batch.seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(i * 7919u % vocab));
    batch.labels.push_back(static_cast<int32_t>(i * 104729u % vocab));
  }
  return batch;
}

}  // namespace eps
