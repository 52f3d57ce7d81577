#ifndef EPS_BENCH_PEERS_WHOLE_MODEL_H_
#define EPS_BENCH_PEERS_WHOLE_MODEL_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// GPT-2 training as a single program does it: all weights, gradients and optimizer state in one
// process, one autograd graph per micro-batch, each block recomputed in the backward pass (as by
// torch.utils.checkpoint), AdamW by LibTorch's fused kernel. The relay through servers is compared
// with it. It shares only initial values, data order and schedule with the relay, so that both
// train the same model on the same samples.
//
// Every call may throw LibTorch's exceptions. Thread-compatible; call it from the computing thread,
// after PrepareLibTorch.
class WholeModel {
 public:
  // Starts with the spec's initial values. Without `recompute` every activation is kept. `spec`
  // must outlive the object. REQUIRES a gpt2 model without dropout.
  WholeModel(const JobSpec& spec, bool recompute);

  // Runs forward and backward of one micro-batch and adds the gradient of the sum of token losses,
  // divided by `step_tokens`, to the step's gradient. Returns the sum.
  double AddMicroBatch(const MicroBatch& batch, uint64_t step_tokens);

  // Clips as the spec says, updates the weights and drops the gradients. Returns the gradients'
  // norm before clipping.
  double Update();

  // Weights in the order of spec.tensors; .grad() is a weight's gradient.
  const std::vector<at::Tensor>& weights() const { return weights_; }

  // Computes one block of the relay's middle; maps x [samples, seq, width] to the same shape.
  at::Tensor Block(size_t layer, const at::Tensor& x) const;

 private:
  double ClipFactor(double norm) const;

  const JobSpec& spec_;
  const Gpt2Config& config_;
  const bool recompute_;
  std::vector<at::Tensor> weights_, exp_avgs_, exp_avg_sqs_, updates_;
  uint64_t update_ = 0;
  double last_norm_ = 0;
};

// Flushes denormals, makes LibTorch compute with `threads` threads, and manages its memory as a
// worker does. Call it before anything else uses LibTorch.
void PrepareLibTorch(int threads);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_WHOLE_MODEL_H_
