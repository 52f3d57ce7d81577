#ifndef EPS_WORKER_EXEC_TORCH_PROGRAM_H_
#define EPS_WORKER_EXEC_TORCH_PROGRAM_H_

// Stages and their weights with the relay's interface. Only worker/exec includes this header.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/queues/device_slots.h"
#include "worker/exec/queues/queue_trace.h"
#include "worker/exec/torch_activations.h"
#include "worker/exec/torch_stage.h"
#include "worker/relay/stage_program.h"
#include "worker/relay/stash_codec.h"

namespace eps {

// `status` holds an error of the object's creation until a later call can return it.
class TorchWeights final : public StageWeights, public std::enable_shared_from_this<TorchWeights> {
 public:
  StageTensors tensors;
  StageTensors for_input_gradient;          // the second copy, or the tensor itself
  std::shared_ptr<HostStage> host;          // set on a CPU
  std::unique_ptr<DeviceCount> counted;     // set on a CPU
  std::shared_ptr<DeviceSlots::Slot> lent;  // set on a device
  absl::Status status;
};

// A TorchStage with the relay's interface: converts handles and catches exceptions.
class TorchProgram final : public StageProgram {
 public:
  // `copies` is null on a CPU and must outlive the program, as `spec` and `stash`.
  TorchProgram(const JobSpec& spec, StageId id, std::unique_ptr<TorchStage> stage,
               const StashCodec& stash, DeviceCopies* copies);

  const StageSpec& spec() const override { return spec_; }
  at::ScalarType type() const { return stage_->type(); }
  void AllowLateLosses() { late_losses_ = true; }
  // Begins a step, in which the stage keeps what Forward computes for Backward, or does not.
  void BeginStep(bool keeps) {
    keeps_ = keeps;
    kept_.clear();
  }

  absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch& batch,
                                        const ActivationPtr& in) override;
  absl::StatusOr<BackwardResult> Backward(const StageWeights& weights, const MicroBatch& batch,
                                          const ActivationPtr& in, const ActivationPtr& grad_out,
                                          int loss_scale_log2,
                                          StageGradientPtr sum_or_null) override;
  absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                               const ActivationPtr& in, Predictions* predictions_or_null) override;

 private:
  // Held from a forward to the backward pass.
  struct Kept {
    std::shared_ptr<const TorchWeights> weights;  // null if the pass does not refer to them
    std::unique_ptr<KeptPass> pass;
  };

  // Returns the weights with which a pass computes that refers to them while it is kept: on a
  // device a copy that all passes of the step share, so that the slot serves the next stage.
  std::shared_ptr<const TorchWeights> WeightsToKeep(const TorchWeights& weights) const;
  // Wraps the activation that the stage passes on, with the values that the stash will return.
  ActivationPtr Stashable(at::Tensor y) const;
  void TakeLoss(const MicroBatch& batch, const at::Tensor& label_log_p, BackwardResult* result);
  // Opens a span of the device's computing; none on a CPU.
  void BeginSpan(const MicroBatch& batch, std::optional<QueueTrace::Span>* span) const;
  // Ends it, and paces a device.
  void EndOfMicroBatch(std::optional<QueueTrace::Span>* span) const;

  const StageSpec& spec_;
  const StageId id_;
  const std::unique_ptr<TorchStage> stage_;
  const StashCodec& stash_;
  DeviceCopies* const copies_;
  bool late_losses_ = false;
  bool keeps_ = false;
  std::map<uint32_t, Kept> kept_;  // by micro-batch
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_PROGRAM_H_
