#ifndef EPS_WORKER_MODELS_TESTING_STAGE_RUNS_H_
#define EPS_WORKER_MODELS_TESTING_STAGE_RUNS_H_

// Passes one micro-batch through all stages of a model. For tests.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "base/job/job_spec.h"
#include "base/job/layout/model_layout.h"
#include "gtest/gtest.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"
#include "worker/models/testing/values.h"

namespace eps {

// Returns the job of a model. `loss_block`: tokens of a block of the head.
inline JobSpec SpecOf(const ModelSpec& model, uint32_t loss_block) {
  JobSpec spec;
  spec.model = model;
  spec.training.loss_block_tokens = loss_block;
  spec.training.seed = 5;
  const absl::Status status = BuildLayout(0.01, &spec);
  EXPECT_TRUE(status.ok()) << status;
  return spec;
}

// The tensors of each stage; a tensor that two stages use is the same in both.
inline std::vector<StageTensors> WeightsOf(const JobSpec& spec, float scale = 0.5f) {
  std::vector<at::Tensor> tensors;
  for (const TensorSpec& t : spec.tensors) {
    std::vector<int64_t> shape = {t.rows, t.cols};
    if (t.rank == 1) shape.erase(shape.begin());
    tensors.push_back(Values(shape, static_cast<uint32_t>(tensors.size()), scale));
    if (t.init == Initializer::kOnes) tensors.back().add_(1.0);
  }
  std::vector<StageTensors> weights;
  for (const StageSpec& stage : spec.stages) {
    weights.emplace_back();
    for (const TensorUse& use : stage.uses) weights.back().push_back(tensors[use.tensor.value()]);
  }
  return weights;
}

// Returns a micro-batch of tokens; every fifth label does not count.
inline MicroBatch BatchOf(uint32_t samples, uint32_t seq_len, uint32_t vocabulary) {
  MicroBatch batch;
  batch.step = Step(3);
  batch.index = 1;
  batch.samples = samples;
  batch.seq_len = seq_len;
  for (uint32_t i = 0; i < samples * seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((i * 7 + 3) % vocabulary));
    batch.labels.push_back(i % 5 == 4 ? kIgnoreLabel : static_cast<int32_t>((i * 5) % vocabulary));
  }
  return batch;
}

// All that one micro-batch gives.
struct Outcome {
  at::Tensor label_log_p;
  std::vector<StageTensors> gradients;
  std::vector<at::Tensor> activations;
};

// Returns the stages of a job, from the first to the last.
inline std::vector<std::unique_ptr<TorchStage>> StagesOf(const JobSpec& spec) {
  std::vector<std::unique_ptr<TorchStage>> stages;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    absl::StatusOr<std::unique_ptr<TorchStage>> stage = NewModelStage(spec, StageId(s));
    EXPECT_TRUE(stage.ok()) << stage.status();
    stages.push_back(*std::move(stage));
  }
  return stages;
}

// Passes a batch up and down through all stages, with a loss scale of 1/2. Adds the gradients of
// each stage to its `sums`, if there are any.
inline Outcome RunStages(const std::vector<std::unique_ptr<TorchStage>>& stages,
                         const std::vector<StageTensors>& weights,
                         const std::vector<StageTensors>& for_input_gradient,
                         const MicroBatch& batch, std::vector<StageTensors> sums = {}) {
  const at::NoGradGuard no_grad;
  sums.resize(stages.size());
  Outcome outcome;
  outcome.activations.emplace_back();
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    outcome.activations.push_back(stages[s]->Forward(weights[s], batch, outcome.activations[s]));
  }
  outcome.gradients.resize(stages.size());
  at::Tensor grad;
  for (size_t s = stages.size(); s-- > 0;) {
    TorchBackward back = stages[s]->Backward(
        weights[s], for_input_gradient[s], batch,
        {outcome.activations[s], grad, /*loss_scale_log2=*/1, std::move(sums[s])});
    if (s + 1 == stages.size()) {
      outcome.label_log_p = back.label_log_p;
      EXPECT_TRUE(stages[s]
                      ->LabelLogP(weights[s], batch, outcome.activations[s], nullptr)
                      .equal(outcome.label_log_p));
    }
    grad = back.grad_in;
    outcome.gradients[s] = std::move(back.gradient);
  }
  return outcome;
}
inline Outcome RunStages(const JobSpec& spec, const std::vector<StageTensors>& weights,
                         const std::vector<StageTensors>& for_input_gradient,
                         const MicroBatch& batch, std::vector<StageTensors> sums = {}) {
  return RunStages(StagesOf(spec), weights, for_input_gradient, batch, std::move(sums));
}

}  // namespace eps

#endif  // EPS_WORKER_MODELS_TESTING_STAGE_RUNS_H_
