#include "worker/exec/torch_program.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "worker/exec/queues/device_queues.h"
#include "worker/exec/stash/stash_tensors.h"
#include "worker/exec/torch_gradient.h"
#include "worker/exec/torch_guard.h"
#include "worker/exec/torch_results.h"

namespace eps {
namespace {

using at::Tensor;

const TorchWeights& WeightsOf(const StageWeights& weights) {
  return static_cast<const TorchWeights&>(weights);
}

Tensor TensorOf(const ActivationPtr& activation) {
  return activation == nullptr ? Tensor() : static_cast<const TorchActivation&>(*activation).tensor;
}

// A loss that is being copied from a device.
class TorchLateLoss final : public LateLoss {
 public:
  TorchLateLoss(std::string what, std::vector<int32_t> labels, DeviceCopies::Stashed label_log_p)
      : what_(std::move(what)), labels_(std::move(labels)), label_log_p_(std::move(label_log_p)) {}
  absl::StatusOr<LossSum> Wait() override {
    EPS_RETURN_IF_ERROR(CatchTorch(what_, [this] { WaitFor(*label_log_p_.copied); }));
    return LossOf(labels_, label_log_p_.host);
  }

 private:
  const std::string what_;
  const std::vector<int32_t> labels_;
  const DeviceCopies::Stashed label_log_p_;
};

}  // namespace

TorchProgram::TorchProgram(const JobSpec& spec, StageId id, std::unique_ptr<TorchStage> stage,
                           const StashCodec& stash, DeviceCopies* copies)
    : spec_(spec.stages[id.value()]),
      id_(id),
      stage_(std::move(stage)),
      stash_(stash),
      copies_(copies) {}

void TorchProgram::BeginSpan(const MicroBatch& batch, std::optional<QueueTrace::Span>* span) const {
  if (copies_ == nullptr) return;
  span->emplace(copies_->trace(), DeviceQueue::kCompute, kDeviceComputeSpan,
                SpanPlace{batch.step.value(), id_.value() + 1});
}

void TorchProgram::EndOfMicroBatch(std::optional<QueueTrace::Span>* span) const {
  span->reset();
  if (copies_ != nullptr) copies_->EndOfMicroBatch();
}

absl::StatusOr<ActivationPtr> TorchProgram::Forward(const StageWeights& weights,
                                                    const MicroBatch& batch,
                                                    const ActivationPtr& in) {
  EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
  ActivationPtr out;
  EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", forward"), [&] {
    const at::NoGradGuard no_grad;
    std::optional<QueueTrace::Span> span;
    BeginSpan(batch, &span);
    const TorchWeights& w = WeightsOf(weights);
    if (keeps_ && !batch.held_out) {
      Kept kept;
      if (stage_->keeps_weights()) kept.weights = WeightsToKeep(w);
      const StageTensors& tensors = kept.weights != nullptr ? kept.weights->tensors : w.tensors;
      out = Stashable(stage_->ForwardAndKeep(tensors, batch, TensorOf(in), &kept.pass));
      if (kept.pass != nullptr) kept_[batch.index] = std::move(kept);
    } else {
      out = Stashable(stage_->Forward(w.tensors, batch, TensorOf(in)));
    }
    EndOfMicroBatch(&span);
  }));
  return out;
}

absl::StatusOr<StageProgram::BackwardResult> TorchProgram::Backward(
    const StageWeights& weights, const MicroBatch& batch, const ActivationPtr& in,
    const ActivationPtr& grad_out, int loss_scale_log2, StageGradientPtr sum_or_null) {
  EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
  auto* const sum = static_cast<TorchGradient*>(sum_or_null.get());
  if (sum != nullptr) EPS_RETURN_IF_ERROR(sum->status);
  BackwardResult result;
  EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", backward"), [&] {
    const at::NoGradGuard no_grad;
    std::optional<QueueTrace::Span> span;
    BeginSpan(batch, &span);
    const TorchWeights& w = WeightsOf(weights);
    BackwardInputs inputs = {TensorOf(in), TensorOf(grad_out), loss_scale_log2};
    if (sum != nullptr) inputs.sums = std::move(sum->tensors);
    const auto kept = kept_.extract(batch.index);  // lasts until the pass is done
    if (!kept.empty()) inputs.kept = std::move(kept.mapped().pass);
    TorchBackward out = stage_->Backward(w.tensors, w.for_input_gradient, batch, std::move(inputs));
    if (out.grad_in.defined()) {
      result.grad_in = std::make_shared<TorchActivation>(std::move(out.grad_in));
    }
    auto gradient = std::make_unique<TorchGradient>();
    gradient->tensors = std::move(out.gradient);
    result.gradient = std::move(gradient);
    if (out.label_log_p.defined()) TakeLoss(batch, out.label_log_p, &result);
    EndOfMicroBatch(&span);
  }));
  if (result.late_loss == nullptr || late_losses_) return result;
  EPS_ASSIGN_OR_RETURN(result.loss, result.late_loss->Wait());
  result.late_loss = nullptr;
  return result;
}

absl::StatusOr<LossSum> TorchProgram::Loss(const StageWeights& weights, const MicroBatch& batch,
                                           const ActivationPtr& in,
                                           Predictions* predictions_or_null) {
  EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
  BackwardResult result;
  EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", loss"), [&] {
    const at::NoGradGuard no_grad;
    Tensor predicted;
    TakeLoss(batch,
             stage_->LabelLogP(WeightsOf(weights).tensors, batch, TensorOf(in),
                               predictions_or_null != nullptr ? &predicted : nullptr),
             &result);
    if (predictions_or_null != nullptr) *predictions_or_null = PredictionsOf(predicted);
  }));
  return result.late_loss == nullptr ? result.loss : result.late_loss->Wait();
}

std::shared_ptr<const TorchWeights> TorchProgram::WeightsToKeep(const TorchWeights& weights) const {
  if (weights.lent == nullptr) return weights.shared_from_this();
  if (!kept_.empty()) return kept_.begin()->second.weights;
  auto copy = std::make_shared<TorchWeights>();
  for (const Tensor& tensor : weights.tensors) copy->tensors.push_back(tensor.clone());
  return copy;
}

ActivationPtr TorchProgram::Stashable(Tensor y) const {
  if (stash_.exact()) return std::make_shared<TorchActivation>(std::move(y));
  const Tensor wide = y.to(at::kFloat);  // y itself if it is FP32
  Tensor encoded = EncodeForStash(stash_, wide);
  DecodeFromStash(stash_, encoded, wide);
  y = wide.to(type());
  return std::make_shared<TorchActivation>(std::move(y), std::move(encoded));
}

void TorchProgram::TakeLoss(const MicroBatch& batch, const Tensor& label_log_p,
                            BackwardResult* result) {
  if (copies_ == nullptr) {
    result->loss = LossOf(batch.labels, label_log_p);
    return;
  }
  result->loss.tokens = CountedTokens(batch);
  result->late_loss =
      std::make_unique<TorchLateLoss>(absl::StrCat("stage ", spec_.name, ", reading the loss"),
                                      batch.labels, copies_->CopyToStash(label_log_p));
}

}  // namespace eps
