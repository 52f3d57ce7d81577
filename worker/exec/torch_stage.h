#ifndef EPS_WORKER_EXEC_TORCH_STAGE_H_
#define EPS_WORKER_EXEC_TORCH_STAGE_H_

// What a model implements: its stages as functions of LibTorch tensors. Only worker/exec and
// worker/models include this header; everybody else sees worker/relay/stage_program.h.

#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Tensors of one stage, by TensorUse; FP32, contiguous, [rows, cols] or [cols].
using StageTensors = std::vector<at::Tensor>;

struct TorchBackward {
  at::Tensor grad_in;     // undefined for the first stage
  StageTensors gradient;  // each the only reference to its memory, so that a sum may reuse it
  // Of the last stage: FP32 [rows], the logarithm of the probability of each row's label; arbitrary
  // where the label does not count.
  at::Tensor label_log_p;
};

// Stateless: everything is computed on the device where the weights lie, in the order that the
// model's header documents. Inputs are never written. Called without autograd; an implementation
// may enable it inside. May throw what LibTorch throws (c10::Error); the runtime turns it into a
// status that names the stage.
class TorchStage {
 public:
  virtual ~TorchStage() = default;

  // As StageProgram, but the result is not rounded; it is contiguous and has memory of its own,
  // which the caller may write. `in` is undefined for the first stage. Not called for the last
  // stage.
  virtual at::Tensor Forward(const StageTensors& weights, const MicroBatch& batch,
                             const at::Tensor& in) const = 0;
  // `grad_out` is undefined for the last stage. `for_input_gradient`: by use, the weights that the
  // gradient of a product's input is computed with, dX = dY W^T: the second copy of a tensor, or
  // the same tensor as in `weights`.
  virtual TorchBackward Backward(const StageTensors& weights,
                                 const StageTensors& for_input_gradient, const MicroBatch& batch,
                                 const at::Tensor& in, const at::Tensor& grad_out,
                                 int loss_scale_log2) const = 0;
  // The label_log_p of Backward, bit for bit. Only called for the last stage.
  virtual at::Tensor LabelLogP(const StageTensors& weights, const MicroBatch& batch,
                               const at::Tensor& in) const = 0;
  // Scores [rows of `in`, vocabulary] of the last stage; `in` is [rows, width]. Only called for
  // the last stage.
  virtual at::Tensor Logits(const StageTensors& weights, const at::Tensor& in) const = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_STAGE_H_
