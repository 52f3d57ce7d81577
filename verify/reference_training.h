#ifndef EPS_VERIFY_REFERENCE_TRAINING_H_
#define EPS_VERIFY_REFERENCE_TRAINING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "optimizer/update_rule.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"
#include "verify/plant.h"
#include "verify/reference_model.h"
#include "verify/wire_reference.h"
#include "worker/relay/relay.h"

namespace eps {

// What a step's record says about it.
struct StepFigures {
  double loss = 0;       // mean over the counted tokens
  double grad_norm = 0;  // before clipping; NaN of a skipped step
  double lr = 0;
  uint64_t tokens = 0;
  bool skipped = false;  // a gradient was not finite, so nothing was updated
};

// A whole training run in one process, step by step, all state in memory: what the job spec means,
// written down without versions, parts in flight, stages on the move or messages. What defines bits
// and is not a sum is shared with the run: random numbers and initial values (base/job/rng.h), sample
// positions, schedules, the chunk boundaries, which codec a chunk has, and the update rule.
// Everything else is the reference's own.
//
// Memory: the state and two more arrays of the model's size (four with
// quantization.backward_weights=both_axes), log2(micro-batches of a step) + 2 gradients of it, and
// two residuals for each part. Thread-compatible.
class ReferenceTraining {
 public:
  // All borrowed; they outlive it. The state is that of the spec's initial values. `plant` makes it
  // compute something else on purpose.
  // Unimplemented names a codec or an optimizer whose arithmetic the reference does not know.
  static absl::StatusOr<std::unique_ptr<ReferenceTraining>> New(const JobSpec& spec,
                                                                ReferenceModel* model,
                                                                BatchSource* batches, Plant plant);

  // For a run that begins with other weights. REQUIRES step() == 0 and the sizes of the spec.
  void SetWeights(TensorValues weights) { state_[0] = std::move(weights); }

  // Runs the next step. FailedPrecondition if a gradient is not finite and
  // training.nonfinite=halt. After an error the object is of no use.
  absl::StatusOr<StepFigures> RunStep();

  uint64_t step() const { return step_; }  // the last one that ran; 0: none
  // The weights, then the update rule's fields in their order.
  // As WireReference::Residuals, after the last step.
  std::map<std::string, std::vector<float>> Residuals(uint32_t part) const {
    return wire_->Residuals(part);
  }
  const std::vector<TensorValues>& state() const { return state_; }
  const TensorValues& weights() const { return state_[0]; }

 private:
  ReferenceTraining(const JobSpec& spec, ReferenceModel* model, BatchSource* batches, Plant plant,
                    std::unique_ptr<UpdateRule> rule);

  void ShowWeights();
  absl::StatusOr<MicroBatchResult> RunMicroBatch(uint32_t part, uint32_t j) const;
  absl::StatusOr<MicroBatchResult> RunPart(uint32_t part) const;
  absl::StatusOr<MicroBatchResult> RunParts() const;
  absl::StatusOr<MicroBatchResult> RunSwappedTree() const;
  TensorValues ReduceUses(UseGradients gradient) const;
  double Norm(const TensorValues& gradient, float scale) const;
  double ClipFactor(double norm) const;
  StepScalars Scalars(double scale, double norm) const;
  void Update(const TensorValues& gradient, const StepScalars& scalars);
  double Rate(uint64_t update) const;

  const JobSpec& spec_;
  ReferenceModel* const model_;
  BatchSource* const batches_;
  const Plant plant_;
  const std::unique_ptr<UpdateRule> rule_;
  const ChunkMap chunks_;

  uint64_t step_ = 0;
  uint64_t update_ = 0;              // the optimizer's t: steps that were not skipped
  double last_norm_ = 0;             // of the last of them
  std::vector<TensorValues> state_;  // weights, then the rule's fields
  std::unique_ptr<WireReference> wire_;
  std::map<Axis, TensorValues> shown_;         // the weights as the wire leaves them
  std::map<Axis, TensorValues> shown_before_;  // those of the step before
  StageInputs inputs_;                         // into shown_
  StageInputs for_input_gradient_;             // as ReferenceModel::Run
};

}  // namespace eps

#endif  // EPS_VERIFY_REFERENCE_TRAINING_H_
