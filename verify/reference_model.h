#ifndef EPS_VERIFY_REFERENCE_MODEL_H_
#define EPS_VERIFY_REFERENCE_MODEL_H_

// The model of the reference: loss and gradients of one micro-batch through the whole network.
// Without LibTorch types, so that the arithmetic around it is tested without LibTorch.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// The weights that each stage sees, by stage and by use of the stage: a tensor that two stages use
// stands there twice. Borrowed; each points to all elements of the tensor, row-major.
using StageInputs = std::vector<std::vector<const float*>>;

// Gradients by stage and by use, as StageInputs: every use of a tensor has one of its own.
using UseGradients = std::vector<std::vector<std::vector<float>>>;

struct MicroBatchResult {
  UseGradients gradient;  // of the sum of token losses
  LossSum loss;
};

// Thread-compatible. Gradients and losses are functions of the arguments alone.
class ReferenceModel {
 public:
  virtual ~ReferenceModel() = default;
  // `for_input_gradient`: as `weights`, those that the gradient of a product's input is computed
  // with (docs/quantization.md); the same pointer where they are the same.
  // Internal or ResourceExhausted with LibTorch's message.
  virtual absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                               const StageInputs& for_input_gradient,
                                               const MicroBatch& batch) = 0;
};

struct ReferenceGpt2Options {
  int threads = 1;  // LibTorch's intra-op threads: must be the worker's, the bits depend on it
  // Added to the stage in the key of every dropout mask: a planted mistake.
  uint16_t mask_stage_shift = 0;
};

// GPT-2 in plain LibTorch, on the CPU: one autograd graph from the tokens to the last layer norm,
// every operation in the order of worker/models/gpt2.h, whose code it does not share; what a stage
// gives to the next one is rounded as worker.stash_codec says. `spec` outlives the model. From this
// call on the calling thread flushes denormals, and so do the threads that LibTorch starts from it:
// call it before anything else uses LibTorch. InvalidArgument if the job's model is not gpt2;
// Unimplemented for another stash codec than the worker's; FailedPrecondition if its tensors are
// not those of a gpt2 model, or if LibTorch's threads were started by somebody who does not flush
// denormals.
absl::StatusOr<std::unique_ptr<ReferenceModel>> NewReferenceGpt2(
    const JobSpec& spec, const ReferenceGpt2Options& options);

}  // namespace eps

#endif  // EPS_VERIFY_REFERENCE_MODEL_H_
