#ifndef EPS_BENCH_PEERS_WHOLE_MODEL_H_
#define EPS_BENCH_PEERS_WHOLE_MODEL_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// GPT-2 in training as one program holds it: all weights, gradients and optimizer state in one
// process, one autograd graph per micro-batch, each block recomputed in the backward pass (as
// torch.utils.checkpoint does), AdamW by LibTorch's fused kernel. What the relay through servers
// is measured against; nothing of the relay's own code is used but the initial values, the data
// order and the schedule, so that both train the same model on the same samples.
//
// Every call may throw what LibTorch throws. Thread-compatible; call it from the thread that will
// compute, after PrepareLibTorch.
class WholeModel {
 public:
  // The spec's initial values. REQUIRES a gpt2 model without dropout; `spec` outlives the object.
  // Without `recompute` every activation is kept instead.
  WholeModel(const JobSpec& spec, bool recompute);

  // Forward and backward of one micro-batch; the gradient of the sum of token losses divided by
  // `step_tokens` is added to what the step has. Returns the sum.
  double AddMicroBatch(const MicroBatch& batch, uint64_t step_tokens);

  // Clips as the spec says, updates the weights and drops the gradients. Returns their norm before
  // clipping.
  double Update();

  // Weights in the order of spec.tensors; their .grad() is the gradient.
  const std::vector<at::Tensor>& weights() const { return weights_; }

  // One block of the relay's middle, x [samples, seq, width] -> the same shape.
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

// Denormals are flushed and LibTorch computes with `threads` threads, its memory managed as a
// worker manages it. Before anything else uses LibTorch.
void PrepareLibTorch(int threads);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_WHOLE_MODEL_H_
