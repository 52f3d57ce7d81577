#ifndef EPS_VERIFY_REFERENCE_MODEL_H_
#define EPS_VERIFY_REFERENCE_MODEL_H_

// The model of the reference: loss and gradients of one micro-batch through the whole network. The
// interface has no LibTorch types, so that the arithmetic around it can be tested without LibTorch.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/relay/stage_program.h"

namespace eps {

// The weights that each stage sees, by stage and use. A tensor that two stages use is listed twice.
// The pointers are borrowed; each points to all elements of the tensor, row-major.
using StageInputs = std::vector<std::vector<const float*>>;

// Gradients by stage and use, like StageInputs: each use of a tensor has its own gradient.
using UseGradients = std::vector<std::vector<std::vector<float>>>;

// The result of one micro-batch.
struct MicroBatchResult {
  UseGradients gradient;  // of the sum of the token losses, scaled
  LossSum loss;
};

// Thread-compatible. Gradients and losses depend on the arguments alone.
class ReferenceModel {
 public:
  virtual ~ReferenceModel() = default;
  // `for_input_gradient` holds the weights with which the gradient of a product's input is computed
  // (docs/quantization.md), by stage and use; a pointer equals the one in `weights` where both
  // passes use the same weights. The gradient is that of the loss times 2^-loss_scale_log2. Returns
  // Internal or ResourceExhausted with LibTorch's message.
  virtual absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                               const StageInputs& for_input_gradient,
                                               const MicroBatch& batch, int loss_scale_log2) = 0;
};

}  // namespace eps

#endif  // EPS_VERIFY_REFERENCE_MODEL_H_
