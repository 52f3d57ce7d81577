#ifndef EPS_WORKER_EXEC_TORCH_STAGE_H_
#define EPS_WORKER_EXEC_TORCH_STAGE_H_

// The interface that a model implements: its stages as functions of LibTorch tensors. Only
// worker/exec and worker/models include this header; all other code includes
// worker/relay/stage_program.h.

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Tensors of one stage, by TensorUse; contiguous, [rows, cols] or [cols].
using StageTensors = std::vector<at::Tensor>;

// The tensors within a stage that a forward pass keeps for the backward pass of its micro-batch.
class KeptPass {
 public:
  virtual ~KeptPass() = default;
};

// The arguments of a backward pass besides weights and data.
struct BackwardInputs {
  at::Tensor in;        // undefined for the first stage
  at::Tensor grad_out;  // undefined for the last stage
  int loss_scale_log2 = 0;
  // By use, sums of earlier micro-batches, to which the gradients are added; empty if there are
  // none.
  StageTensors sums = {};
  std::unique_ptr<KeptPass> kept = nullptr;  // null if the pass computes everything again
};

// The result of a backward pass.
struct TorchBackward {
  at::Tensor grad_in;  // undefined for the first stage; may be for the lowest one with training
  // FP32, by use. Each is the only reference to its memory, so that a sum may reuse it. A frozen
  // tensor may have none.
  StageTensors gradient;
  // For the last stage: FP32 [rows], minus the loss of each row, which is the logarithm of the
  // probability of its label; arbitrary where the label does not count.
  at::Tensor label_log_p;
};

// One stage. Stateless: computes on the device that holds the weights, in the order that the
// model's file documents. Never writes its inputs. Called without autograd; an implementation may
// enable it internally. May throw what LibTorch throws (c10::Error); the runtime converts it to a
// status that names the stage.
class TorchStage {
 public:
  virtual ~TorchStage() = default;

  // The element type of weights, activations and gradients of activations: FP32, BF16 or FP16.
  virtual at::ScalarType type() const { return at::kFloat; }

  // As StageProgram::Forward, except that the result is not rounded. It is contiguous and has its
  // own memory, which the caller may write. `in` is undefined for the first stage. Not called for
  // the last stage, which need not implement it.
  virtual at::Tensor Forward(const StageTensors& /*weights*/, const MicroBatch& /*batch*/,
                             const at::Tensor& /*in*/) const {
    TORCH_CHECK(false, "this stage has no forward pass of its own");
  }
  // As Forward, bit for bit, and sets *kept to what Backward would have to compute again, or to
  // null. Called for stages that CanKeep (base/job/layout/step_memory.h).
  virtual at::Tensor ForwardAndKeep(const StageTensors& weights, const MicroBatch& batch,
                                    const at::Tensor& in, std::unique_ptr<KeptPass>* kept) const {
    kept->reset();
    return Forward(weights, batch, in);
  }
  // Whether what ForwardAndKeep keeps refers to the memory of `weights`.
  virtual bool keeps_weights() const { return false; }
  // `for_input_gradient` holds, by use, the weights for the gradient of a product's input, dX = dY
  // W^T: the second copy of a tensor, or the same tensor as in `weights`.
  virtual TorchBackward Backward(const StageTensors& weights,
                                 const StageTensors& for_input_gradient, const MicroBatch& batch,
                                 BackwardInputs inputs) const = 0;
  // Returns the label_log_p of Backward, bit for bit, but without label smoothing. Unless it is
  // null, sets *predictions_or_null to what is predicted for each sample: int64 classes, of several
  // with the highest score the lowest, or FP32 numbers. Only called for the last stage, as Logits;
  // the others need not implement the two.
  virtual at::Tensor LabelLogP(const StageTensors& /*weights*/, const MicroBatch& /*batch*/,
                               const at::Tensor& /*in*/,
                               at::Tensor* /*predictions_or_null*/) const {
    TORCH_CHECK(false, "only the last stage has a loss");
  }
  // Returns the last stage's scores [rows of `in`, vocabulary] as FP32; `in` is [rows, width].
  virtual at::Tensor Logits(const StageTensors& /*weights*/, const at::Tensor& /*in*/) const {
    TORCH_CHECK(false, "only the last stage has scores");
  }
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_STAGE_H_
