#ifndef EPS_VERIFY_REFERENCE_TRAINING_H_
#define EPS_VERIFY_REFERENCE_TRAINING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/numerics/loss_scale.h"
#include "optimizer/update_rule.h"
#include "verify/plant.h"
#include "verify/reference_model.h"
#include "verify/wire_reference.h"
#include "worker/relay/relay.h"

namespace eps {

// The figures that a run records for a step.
struct StepFigures {
  double loss = 0;       // mean over the counted tokens
  double grad_norm = 0;  // before clipping; NaN for a skipped step
  double lr = 0;
  uint64_t tokens = 0;
  bool skipped = false;  // true if a gradient was not finite and nothing was updated
};

// A whole training run in one process, step by step, with all state in memory. It implements what
// the job spec means without versions, parts in flight, moving stages or messages. It shares with a
// run only what defines bits and is not a sum: random numbers and initial values
// (base/numerics/rng.h), sample positions, schedules, chunk boundaries, the choice of each chunk's
// codec, and the update rule. Everything else is the reference's own code.
//
// Memory: the state, two more arrays of the model's size (four with
// quantization.backward_weights=both_axes), log2(micro-batches of a step) + 2 gradients of that
// size, and two residuals per part. Thread-compatible.
class ReferenceTraining {
 public:
  // Borrows all arguments; they must outlive the object. The state starts with the spec's initial
  // values. `plant` selects a deliberate mistake. Returns Unimplemented, naming the codec or the
  // optimizer, if the reference does not know its arithmetic.
  static absl::StatusOr<std::unique_ptr<ReferenceTraining>> New(const JobSpec& spec,
                                                                ReferenceModel* model,
                                                                BatchSource* batches, Plant plant);

  // Replaces the initial weights. REQUIRES step() == 0 and the sizes of the spec.
  void SetWeights(TensorValues weights) { state_[0] = std::move(weights); }

  // Replaces the state after a step by that of a run, whose figures of the step are `found`. For a
  // comparison in which every step starts where the run was.
  void Adopt(std::vector<TensorValues> state, const StepFigures& found) {
    state_ = std::move(state);
    if (!found.skipped) last_norm_ = found.grad_norm;
  }

  // Runs the next step. Returns FailedPrecondition if a gradient is not finite and
  // training.nonfinite=halt. Do not use the object after an error.
  absl::StatusOr<StepFigures> RunStep();

  uint64_t step() const { return step_; }  // the last step that ran; 0 before the first
  // As WireReference::Residuals, after the last step.
  std::map<std::string, std::vector<float>> Residuals(uint32_t part) const {
    return wire_->Residuals(part);
  }
  // The weights, then the update rule's fields in their order.
  const std::vector<TensorValues>& state() const { return state_; }
  const TensorValues& weights() const { return state_[0]; }

 private:
  ReferenceTraining(const JobSpec& spec, ReferenceModel* model, BatchSource* batches, Plant plant,
                    std::unique_ptr<UpdateRule> rule);

  // Passes the weights through the wire and points inputs_ and for_input_gradient_ at the result.
  void ShowWeights();
  absl::StatusOr<MicroBatchResult> RunMicroBatch(uint32_t part, uint32_t j) const;
  absl::StatusOr<MicroBatchResult> RunPart(uint32_t part) const;
  absl::StatusOr<MicroBatchResult> RunParts() const;
  absl::StatusOr<MicroBatchResult> RunSwappedTree() const;
  TensorValues ReduceUses(UseGradients gradient) const;
  double Norm(const TensorValues& gradient, float scale) const;
  double ClipFactor(double norm) const;
  StepScalars Scalars(double scale, double norm) const;
  // The numbers of a tensor's group, without its trust ratio.
  GroupScalars GroupOf(size_t tensor) const;
  // Points at a tensor's weights and fields.
  TileState StateOf(size_t tensor);
  // Returns the trust ratio of each tensor; 1 for all unless the optimizer adapts.
  std::vector<double> TrustRatios(const TensorValues& gradient, const StepScalars& scalars);
  void Update(const TensorValues& gradient, const StepScalars& scalars);
  double Rate(uint64_t update) const;

  const JobSpec& spec_;
  ReferenceModel* const model_;
  BatchSource* const batches_;
  const Plant plant_;
  const std::unique_ptr<UpdateRule> rule_;
  const ChunkMap chunks_;

  uint64_t step_ = 0;
  uint64_t update_ = 0;  // the optimizer's t: the number of steps that were not skipped
  std::optional<LossScale> loss_scale_;  // of the next step, with training.precision=cmp
  double last_norm_ = 0;                 // gradient norm of the last step that was not skipped
  std::vector<TensorValues> state_;      // weights, then the rule's fields
  std::unique_ptr<WireReference> wire_;
  std::map<Axis, TensorValues> shown_;         // the weights after the wire
  std::map<Axis, TensorValues> shown_before_;  // shown_ of the previous step
  StageInputs inputs_;                         // points into shown_
  StageInputs for_input_gradient_;             // see ReferenceModel::Run
};

}  // namespace eps

#endif  // EPS_VERIFY_REFERENCE_TRAINING_H_
