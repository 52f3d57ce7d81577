// The reference for model programs: all stages as one autograd graph, without the cut at their
// borders, recomputation, stash or wire. The calls are run by the worker's evaluator, which
// tests/oracles judges.

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/job/models/model_program.h"
#include "base/status_macros.h"
#include "compression/reference_codec.h"
#include "torch/csrc/autograd/autograd.h"
#include "verify/models/reference_parts.h"
#include "verify/reference_models.h"
#include "worker/exec/torch_guard.h"
#include "worker/models/program_evaluator.h"
#include "worker/models/program_ops.h"
#include "worker/models/program_tensors.h"
#include "worker/models/stage_inputs.h"

namespace eps {
namespace {

using at::Tensor;

class ReferenceProgram final : public ReferenceModel {
 public:
  ReferenceProgram(const JobSpec& spec, uint16_t mask_stage_shift,
                   std::unique_ptr<ReferenceCodec> stash)
      : spec_(spec),
        program_(*spec.model.program),
        type_(ScalarTypeOf(program_.type)),
        mask_stage_shift_(mask_stage_shift),
        stash_(std::move(stash)) {}

  absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                       const StageInputs& for_input_gradient,
                                       const MicroBatch& batch, int loss_scale_log2) override {
    for (size_t s = stages_.size(); s < program_.stages.size(); ++s) {
      EPS_ASSIGN_OR_RETURN(auto stage,
                           ProgramEvaluator::Create(program_.calls_of(s), program_.stages[s].name));
      stages_.push_back(std::move(stage));
    }
    MicroBatchResult result;
    EPS_RETURN_IF_ERROR(CatchTorch(
        absl::StrCat("reference, step ", batch.step.value(), ", micro-batch ", batch.index),
        [&] { result = RunOrThrow(weights, for_input_gradient, batch, loss_scale_log2); }));
    return result;
  }

 private:
  MicroBatchResult RunOrThrow(const StageInputs& weights, const StageInputs& for_input_gradient,
                              const MicroBatch& batch, int loss_scale_log2) const {
    const at::AutoGradMode with_grad(true);
    const size_t head = stages_.size() - 1;
    std::vector<Tensor> leaves;
    Tensor x;
    for (size_t s = 0; s < head; ++s) {
      ProgramInputs inputs = InputsOf(s, weights[s], for_input_gradient[s], batch);
      inputs.activation = x;
      for (const ProgramWeight& weight : inputs.weights) leaves.push_back(weight.value);
      x = Stashed(stages_[s]->Run(inputs));
    }
    MicroBatchResult result;
    std::vector<Tensor> of_head(weights[head].size());
    const Tensor dx = Head(InputsOf(head, weights[head], for_input_gradient[head], batch), batch,
                           x.detach(), std::ldexp(1.0, -loss_scale_log2), &of_head, &result.loss);
    std::vector<Tensor> gradients =
        torch::autograd::grad({x}, leaves, {dx}, /*retain_graph=*/false, /*create_graph=*/false,
                              /*allow_unused=*/true);
    gradients.insert(gradients.end(), of_head.begin(), of_head.end());
    result.gradient = ByUse(gradients);
    return result;
  }

  // Everything but the activation. The weights are leaves.
  ProgramInputs InputsOf(size_t stage, const std::vector<const float*>& weights,
                         const std::vector<const float*>& for_input_gradient,
                         const MicroBatch& batch) const {
    ProgramInputs inputs;
    for (size_t use = 0; use < weights.size(); ++use) {
      ProgramWeight weight;
      weight.value = CopyOf(stage, use, weights[use]).requires_grad_(true);
      weight.value.set_grad_dtype(at::kFloat);
      if (for_input_gradient[use] != weights[use]) {
        weight.for_input_gradient = CopyOf(stage, use, for_input_gradient[use]);
      }
      inputs.weights.push_back(std::move(weight));
    }
    inputs.constants = ProgramConstants(program_, program_.stages[stage]);
    inputs.columns =
        ProgramColumns(program_, program_.calls_of(stage), batch, inputs.weights[0].value);
    inputs.drop = [this, stage, batch_ptr = &batch](uint16_t site, double p, const Tensor& x) {
      return x.mul(ReferenceMask(spec_, *batch_ptr, stage + mask_stage_shift_, site, p, x.sizes()))
          .to(x.scalar_type());
    };
    return inputs;
  }

  Tensor CopyOf(size_t stage, size_t use, const float* values) const {
    const ProgramTensor& tensor = program_.tensors[program_.stages[stage].uses[use].tensor];
    const Tensor borrowed = at::from_blob(const_cast<float*>(values), tensor.shape,
                                          at::TensorOptions().dtype(at::kFloat));
    return borrowed.to(type_, /*non_blocking=*/false, /*copy=*/true);
  }

  Tensor Stashed(const Tensor& x) const {
    return stash_ == nullptr ? x : StashRounding::apply(x, stash_.get());
  }

  // Computes the loss and its gradients in blocks of training.loss_block_tokens rows, which matter
  // for the bits (worker/models/program_stage.cc). Adds to the gradients of the head's weights and
  // returns that of its activation `x`, all times `scale`.
  Tensor Head(const ProgramInputs& inputs, const MicroBatch& batch, const Tensor& x, double scale,
              std::vector<Tensor>* gradients, LossSum* loss) const {
    const Tensor labels = Labels(batch, x);
    const int64_t rows = labels.size(0);
    const bool by_rows = program_.rowwise && program_.head == HeadKind::kTokens;
    const int64_t most = by_rows ? int64_t{spec_.training.loss_block_tokens} : rows;
    const Tensor dx = at::empty_like(x, at::MemoryFormat::Contiguous);
    for (int64_t first = 0; first < rows; first += most) {
      const int64_t count = std::min(most, rows - first);
      const auto part = [&](const Tensor& of_rows) {
        if (!by_rows) return of_rows;
        std::vector<int64_t> shape = of_rows.sizes().vec();
        shape[0] = 1;
        shape[1] = -1;
        return of_rows.view(shape).narrow(1, first, count);
      };
      ProgramInputs block = inputs;
      block.activation = part(x).detach().requires_grad_(true);
      for (Tensor& column : block.columns) column = part(column);
      std::vector<Tensor> leaves = {block.activation};
      for (size_t use = 0; use < block.weights.size(); ++use) {
        if (stages_.back()->IsMultipliedOnly(use)) {
          block.weights[use].gradient_sum = &(*gradients)[use];
        }
        leaves.push_back(block.weights[use].value);
      }
      const Tensor scores = stages_.back()->Run(block).reshape({count, -1}).to(at::kFloat);
      const Tensor target = labels.narrow(0, first, count);
      AddLosses(Loss(scores, target, at::Reduction::None).detach(), target, loss);
      const Tensor total = Loss(scores, target, at::Reduction::Sum).mul(scale);
      const std::vector<Tensor> of_block =
          torch::autograd::grad({total}, leaves, {}, /*retain_graph=*/false,
                                /*create_graph=*/false, /*allow_unused=*/true);
      part(dx).copy_(of_block[0]);
      for (size_t use = 0; use < block.weights.size(); ++use) {
        const Tensor& gradient = of_block[use + 1];
        if (!gradient.defined()) continue;
        Tensor& sum = (*gradients)[use];
        sum = sum.defined() ? sum.add(gradient) : gradient;
      }
    }
    return dx;
  }

  // Returns the label of each row that has a loss, or its number.
  Tensor Labels(const MicroBatch& batch, const Tensor& like) const {
    switch (program_.head) {
      case HeadKind::kTokens:
        return IdTensor(batch.labels, batch, like).view({-1});
      case HeadKind::kClasses:
        return SampleLabels(batch.labels, batch, like);
      case HeadKind::kMse:
        break;
    }
    return SampleTargets(batch.targets, batch, like);
  }

  // The loss of LibTorch's own operators. `scores` is FP32 [rows, classes].
  Tensor Loss(const Tensor& scores, const Tensor& target,
              at::Reduction::Reduction reduction) const {
    if (program_.head == HeadKind::kMse) return at::mse_loss(scores.view({-1}), target, reduction);
    return at::cross_entropy_loss(scores, target, {}, reduction, kIgnoreLabel,
                                  spec_.training.label_smoothing);
  }

  UseGradients ByUse(const std::vector<Tensor>& gradients) const {
    UseGradients by_use;
    size_t next = 0;
    for (const StageSpec& stage : spec_.stages) {
      by_use.emplace_back();
      for (const TensorUse& use : stage.uses) {
        const uint64_t elements = spec_.tensors[use.tensor.value()].elements();
        const Tensor& gradient = gradients[next++];
        if (!gradient.defined()) {
          by_use.back().emplace_back(elements);
          continue;
        }
        const Tensor g = gradient.contiguous();
        const float* const values = g.const_data_ptr<float>();
        by_use.back().emplace_back(values, values + elements);
      }
    }
    return by_use;
  }

  const JobSpec& spec_;
  const ModelProgram& program_;
  const at::ScalarType type_;  // of weights and activations
  const uint16_t mask_stage_shift_;
  const std::unique_ptr<ReferenceCodec> stash_;
  std::vector<std::unique_ptr<const ProgramEvaluator>> stages_;
};

const ReferenceModelRegistration kProgram(
    ModelType::kProgram,
    [](const JobSpec& spec, uint16_t mask_stage_shift,
       std::unique_ptr<ReferenceCodec> stash) -> std::unique_ptr<ReferenceModel> {
      return std::make_unique<ReferenceProgram>(spec, mask_stage_shift, std::move(stash));
    });

}  // namespace
}  // namespace eps
