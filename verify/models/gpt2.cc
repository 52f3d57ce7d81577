#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/addmm.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/full.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/softmax.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/job/legality.h"
#include "base/status_macros.h"
#include "compression/reference_codec.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "verify/models/reference_parts.h"
#include "verify/reference_models.h"
#include "worker/exec/torch_guard.h"
#include "worker/models/program_ops.h"

namespace eps {
namespace {

using at::Tensor;

// The places in a stage that draw a dropout mask each (base/numerics/rng.h).
enum Site : uint16_t { kEmbeddingOrAttention = 0, kAttentionProjection = 1, kMlp = 2 };

// Indices of the tensors among the uses of a block and of the head, as BuildLayout lists them.
enum BlockUse {
  kLn1Weight,
  kLn1Bias,
  kQkvWeight,
  kQkvBias,
  kProjectionWeight,
  kProjectionBias,
  kLn2Weight,
  kLn2Bias,
  kUpWeight,
  kUpBias,
  kDownWeight,
  kDownBias,
};
enum HeadUse { kFinalWeight, kFinalBias, kOutputMatrix };

// y = x W + bias in the type of x, with the derivative by x computed with a second matrix: dx = dy
// W'^T. The other derivatives are FP32, as `bias` and `weight`.
class LinearOfTwo : public torch::autograd::Function<LinearOfTwo> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& bias,
                        const Tensor& x, const Tensor& weight, const Tensor& for_dx) {
    const at::ScalarType type = x.scalar_type();
    context->save_for_backward({x, for_dx.to(type)});
    return at::addmm(bias.to(type), x, weight.to(type));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Tensor& dy = grads[0];
    const Tensor wide = dy.to(at::kFloat);
    return {wide.sum(0), at::mm(dy, saved[1].t()), at::mm(saved[0].to(at::kFloat).t(), wide),
            Tensor()};
  }
};

// GPT-2 from the tokens to the last layer norm. Every operation runs in the order that
// worker/models/gpt2.cc lists. The leaves are FP32 with the values of the type in which the job
// computes; autograd converts where that type and FP32 meet.
class ReferenceGpt2 final : public ReferenceModel {
 public:
  // `stash` is null if activations are not rounded.
  ReferenceGpt2(const JobSpec& spec, uint16_t mask_stage_shift,
                std::unique_ptr<ReferenceCodec> stash)
      : spec_(spec),
        config_(spec.model.gpt2),
        type_(ScalarTypeOf(ElementTypeOf(spec.training.precision))),
        mask_stage_shift_(mask_stage_shift),
        stash_(std::move(stash)) {}

  absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                       const StageInputs& for_input_gradient,
                                       const MicroBatch& batch, int loss_scale_log2) override {
    MicroBatchResult result;
    EPS_RETURN_IF_ERROR(CatchTorch(
        absl::StrCat("reference, step ", batch.step.value(), ", micro-batch ", batch.index), [&] {
          result =
              RunOrThrow(weights, for_input_gradient, batch, std::ldexp(1.0, -loss_scale_log2));
        }));
    return result;
  }

 private:
  using Leaves = std::vector<std::vector<Tensor>>;  // by stage and use

  MicroBatchResult RunOrThrow(const StageInputs& weights, const StageInputs& for_input_gradient,
                              const MicroBatch& batch, double scale) const {
    const at::AutoGradMode with_grad(true);
    const Leaves leaves = MakeLeaves(weights);
    const Leaves others = OtherCopies(weights, for_input_gradient);
    Tensor x = Stashed(Embed(leaves[0], batch));
    const size_t head = leaves.size() - 1;
    for (size_t stage = 1; stage < head; ++stage) {
      x = Stashed(Block(leaves[stage], others[stage], batch, stage, x));
    }
    const Tensor h =
        Norm(x, leaves[head][kFinalWeight], leaves[head][kFinalBias]).view({-1, config_.n_embd});

    MicroBatchResult result;
    Tensor dh = at::empty(h.sizes(), h.options().requires_grad(false));
    const Tensor output = leaves[head][kOutputMatrix].detach().to(type_);
    const Tensor other = others[head][kOutputMatrix];
    const Tensor doutput =
        LossBlocks(h.detach(), output, other.defined() ? other.to(type_) : output, batch, scale, dh,
                   &result.loss);
    std::vector<Tensor> inputs;
    for (const auto& stage : leaves) inputs.insert(inputs.end(), stage.begin(), stage.end());
    inputs.pop_back();  // the output matrix, whose gradient LossBlocks returned
    std::vector<Tensor> grads = torch::autograd::grad({h}, inputs, {dh});
    grads.push_back(doutput);
    result.gradient = ByUse(leaves, grads);
    return result;
  }

  Leaves MakeLeaves(const StageInputs& weights) const {
    Leaves leaves;
    for (size_t stage = 0; stage < spec_.stages.size(); ++stage) {
      leaves.emplace_back();
      for (size_t use = 0; use < spec_.stages[stage].uses.size(); ++use) {
        leaves.back().push_back(CopyOf(stage, use, weights[stage][use]).requires_grad_(true));
      }
    }
    return leaves;
  }

  // Copies the weights for the input gradient; undefined where they equal the weights.
  Leaves OtherCopies(const StageInputs& weights, const StageInputs& for_input_gradient) const {
    Leaves others;
    for (size_t stage = 0; stage < spec_.stages.size(); ++stage) {
      others.emplace_back();
      for (size_t use = 0; use < spec_.stages[stage].uses.size(); ++use) {
        const float* const other = for_input_gradient[stage][use];
        others.back().push_back(other == weights[stage][use] ? Tensor()
                                                             : CopyOf(stage, use, other));
      }
    }
    return others;
  }

  Tensor CopyOf(size_t stage, size_t use, const float* values) const {
    const TensorSpec& tensor = spec_.tensors[spec_.stages[stage].uses[use].tensor.value()];
    std::vector<int64_t> shape = {tensor.rows, tensor.cols};
    if (tensor.rank == 1) shape.erase(shape.begin());
    const Tensor borrowed =
        at::from_blob(const_cast<float*>(values), shape, at::TensorOptions().dtype(at::kFloat));
    return borrowed.to(type_).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }

  Tensor Stashed(const Tensor& x) const {
    return stash_ == nullptr ? x : StashRounding::apply(x, stash_.get());
  }

  // x W + b, where `weight` and `bias` are indices of uses; `others` is from OtherCopies.
  Tensor Linear(const Tensor& x, const std::vector<Tensor>& w, const std::vector<Tensor>& others,
                BlockUse weight, BlockUse bias) const {
    const bool two = others[weight].defined();
    if (!two && type_ == at::kFloat) return at::addmm(w[bias], x, w[weight]);
    return LinearOfTwo::apply(w[bias], x, w[weight], two ? others[weight] : w[weight].detach());
  }

  static UseGradients ByUse(const Leaves& leaves, const std::vector<Tensor>& grads) {
    UseGradients gradient;
    size_t next = 0;
    for (const auto& stage : leaves) {
      gradient.emplace_back();
      for (size_t use = 0; use < stage.size(); ++use) {
        const Tensor g = grads[next++].contiguous();
        const float* const values = g.const_data_ptr<float>();
        gradient.back().emplace_back(values, values + g.numel());
      }
    }
    return gradient;
  }

  static Tensor Ids(const std::vector<int32_t>& ids) {
    const auto count = static_cast<int64_t>(ids.size());
    return at::from_blob(const_cast<int32_t*>(ids.data()), {count},
                         at::TensorOptions().dtype(at::kInt))
        .to(at::kLong);
  }

  Tensor Dropout(const MicroBatch& batch, size_t stage, Site site, double p,
                 const Tensor& x) const {
    if (p == 0) return x;
    const Tensor mask = ReferenceMask(spec_, batch, stage + mask_stage_shift_, site, p, x.sizes());
    return (x * mask).to(x.scalar_type());
  }

  Tensor Norm(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    return at::layer_norm(x.to(at::kFloat), {config_.n_embd}, weight, bias,
                          config_.layer_norm_epsilon)
        .to(type_);
  }

  Tensor Embed(const std::vector<Tensor>& w, const MicroBatch& batch) const {
    const Tensor tokens = Ids(batch.tokens).view({batch.samples, batch.seq_len});
    const Tensor places =
        batch.positions.empty()
            ? w[1].narrow(0, 0, batch.seq_len).expand({batch.samples, -1, -1})
            : at::embedding(w[1], Ids(batch.positions).view({batch.samples, batch.seq_len}));
    const Tensor y = at::embedding(w[0], tokens).to(type_) + places.to(type_);
    return Dropout(batch, 0, kEmbeddingOrAttention, config_.embd_pdrop, y);
  }

  // Maps x [samples, seq, width] to the same shape.
  Tensor Block(const std::vector<Tensor>& w, const std::vector<Tensor>& others,
               const MicroBatch& batch, size_t stage, const Tensor& x) const {
    const Tensor rows = x.view({-1, config_.n_embd});
    const Tensor h = Norm(rows, w[kLn1Weight], w[kLn1Bias]);
    const Tensor qkv = Linear(h, w, others, kQkvWeight, kQkvBias);
    const Tensor attended = Attention(batch, stage, qkv);
    const Tensor projected = Linear(attended, w, others, kProjectionWeight, kProjectionBias);
    const Tensor middle =
        rows + Dropout(batch, stage, kAttentionProjection, config_.resid_pdrop, projected);
    const Tensor up =
        Linear(Norm(middle, w[kLn2Weight], w[kLn2Bias]), w, others, kUpWeight, kUpBias);
    const Tensor down = Linear(at::gelu(up, "tanh"), w, others, kDownWeight, kDownBias);
    const Tensor y = middle + Dropout(batch, stage, kMlp, config_.resid_pdrop, down);
    return y.view(x.sizes());
  }

  // Returns whether the token of a row may not see the one of a column: [seq, seq], or [samples, 1,
  // seq, seq] if documents share rows.
  static Tensor Hidden(const MicroBatch& batch) {
    const int64_t samples = batch.samples, seq = batch.seq_len;
    if (batch.positions.empty()) return at::ones({seq, seq}, at::kBool).triu(1);
    Tensor hidden = at::ones({samples, 1, seq, seq}, at::kBool);
    bool* const values = hidden.mutable_data_ptr<bool>();
    for (int64_t row = 0; row < samples * seq; ++row) {
      // Back from the token to the first one of its document.
      for (int64_t i = row;; --i) {
        values[row * seq + i % seq] = false;
        if (batch.positions[static_cast<size_t>(i)] == 0) break;
      }
    }
    return hidden;
  }

  // Maps rows of [q | k | v] to rows of the heads' outputs side by side.
  Tensor Attention(const MicroBatch& batch, size_t stage, const Tensor& qkv) const {
    const int64_t samples = batch.samples, seq = batch.seq_len;
    const int64_t head_width = config_.n_embd / config_.n_head;
    std::vector<Tensor> thirds = qkv.split(config_.n_embd, 1);
    for (Tensor& third : thirds) {
      third = third.view({samples, seq, config_.n_head, head_width}).transpose(1, 2);
    }
    Tensor out;
    const Tensor hidden = Hidden(batch);
    if (config_.attn_pdrop == 0 && !batch.positions.empty()) {
      out = at::scaled_dot_product_attention(thirds[0], thirds[1], thirds[2], hidden.logical_not());
    } else if (config_.attn_pdrop == 0) {
      out = at::scaled_dot_product_attention(thirds[0], thirds[1], thirds[2], /*attn_mask=*/{},
                                             /*dropout_p=*/0.0, /*is_causal=*/true);
    } else {
      const Tensor scores = at::matmul(thirds[0], thirds[1].transpose(-2, -1)).to(at::kFloat) *
                            (1.0 / std::sqrt(static_cast<double>(head_width)));
      const Tensor probabilities =
          at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
      out = at::matmul(
          Dropout(batch, stage, kEmbeddingOrAttention, config_.attn_pdrop, probabilities).to(type_),
          thirds[2]);
    }
    return out.transpose(1, 2).reshape({samples * seq, config_.n_embd});
  }

  // Computes the loss and its gradient in blocks of training.loss_block_tokens rows of `h`. The
  // blocks matter for the bits: the gradient of the output matrix is accumulated block by block
  // into one product, which rounds differently from a sum of products. Fills `dh`, computed with
  // the output matrix `for_dh`, and returns the gradient of the output matrix, all times `scale`.
  Tensor LossBlocks(const Tensor& h, const Tensor& output, const Tensor& for_dh,
                    const MicroBatch& batch, double scale, Tensor dh, LossSum* loss) const {
    const Tensor labels = Ids(batch.labels);
    const int64_t block = spec_.training.loss_block_tokens;
    Tensor doutput;
    for (int64_t first = 0; first < h.size(0); first += block) {
      const int64_t rows = std::min(block, h.size(0) - first);
      const Tensor part = h.narrow(0, first, rows);
      const Tensor target = labels.narrow(0, first, rows);
      const Tensor scores = at::mm(part, output.t()).to(at::kFloat).requires_grad_(true);
      const double smoothing = spec_.training.label_smoothing;
      const Tensor each =
          at::cross_entropy_loss(scores, target, {}, at::Reduction::None, kIgnoreLabel, smoothing);
      AddLosses(each.detach(), target, loss);
      const Tensor total =
          at::cross_entropy_loss(scores, target, {}, at::Reduction::Sum, kIgnoreLabel, smoothing);
      const Tensor dscores = torch::autograd::grad({total.mul(scale)}, {scores})[0].to(type_);
      const Tensor transposed = dscores.to(at::kFloat).t();
      if (first == 0) {
        doutput = at::mm(transposed, part.to(at::kFloat));
      } else {
        doutput.addmm_(transposed, part.to(at::kFloat));
      }
      dh.narrow(0, first, rows).copy_(at::mm(dscores, for_dh));
    }
    return doutput;
  }

  const JobSpec& spec_;
  const Gpt2Config& config_;
  const at::ScalarType type_;  // in which the job computes
  const uint16_t mask_stage_shift_;
  const std::unique_ptr<ReferenceCodec> stash_;
};

const ReferenceModelRegistration kGpt2(
    ModelType::kGpt2,
    [](const JobSpec& spec, uint16_t mask_stage_shift,
       std::unique_ptr<ReferenceCodec> stash) -> std::unique_ptr<ReferenceModel> {
      return std::make_unique<ReferenceGpt2>(spec, mask_stage_shift, std::move(stash));
    });

}  // namespace
}  // namespace eps
