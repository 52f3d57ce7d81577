#ifndef EPS_VERIFY_MODELS_REFERENCE_PARTS_H_
#define EPS_VERIFY_MODELS_REFERENCE_PARTS_H_

// The parts that all references share; they share none with the worker's code.

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/numerics/rng.h"
#include "compression/reference_codec.h"
#include "torch/csrc/autograd/custom_function.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Rounds x, FP32, BF16 or FP16, as the stash does; the derivative is the identity.
class StashRounding : public torch::autograd::Function<StashRounding> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const ReferenceCodec* codec) {
    const at::Tensor y = x.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
    Chunk chunk;
    chunk.elements = static_cast<uint64_t>(y.numel());
    float* const values = y.mutable_data_ptr<float>();
    const std::string bytes = codec->Encode(chunk, Axis::kRow, values, nullptr);
    codec->Decode(chunk, Axis::kRow, bytes, values);
    return y.to(x.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0], at::Tensor()};
  }
};

// Returns the dropout mask of a site (base/numerics/rng.h) in the given shape.
inline at::Tensor ReferenceMask(const JobSpec& spec, const MicroBatch& batch, size_t stage,
                                uint16_t site, double p, at::IntArrayRef shape) {
  RngKey key;
  key.seed = spec.training.seed;
  key.step = batch.step.value();
  key.micro_batch = batch.index;
  key.stage = static_cast<uint16_t>(stage);
  key.site = site;
  at::Tensor mask = at::empty(shape);
  FillDropoutMask(key, p, absl::MakeSpan(mask.mutable_data_ptr<float>(), mask.numel()));
  return mask;
}

// Adds the float32 losses of all positions whose int64 label counts, or of all float32 targets.
inline void AddLosses(const at::Tensor& each, const at::Tensor& labels, LossSum* loss) {
  const float* const values = each.const_data_ptr<float>();
  const bool are_ids = labels.scalar_type() == at::kLong;
  for (int64_t i = 0; i < each.numel(); ++i) {
    if (are_ids && labels.const_data_ptr<int64_t>()[i] == kIgnoreLabel) continue;
    loss->sum += static_cast<double>(values[i]);
    ++loss->tokens;
  }
}

}  // namespace eps

#endif  // EPS_VERIFY_MODELS_REFERENCE_PARTS_H_
