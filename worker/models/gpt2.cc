// GPT-2 as Hugging Face computes it, one stage at a time. Together with the compute profile, the
// order of operations defines the bits of the result; a reference that follows it gets the same
// bits. B samples of T tokens, N = B * T rows, d = n_embd, mask(s) = FillDropoutMask of site s with
// key (seed, step, micro-batch, stage), 0-based stage; a probability of 0 skips the multiplication.
// Denormals are flushed. mm/addmm/layer_norm/gelu/sum are LibTorch's functions. W' is W, or its
// copy along the other axis if there is one (docs/quantization.md).
//
// With training.precision bf16 or cmp, weights, activations and their gradients have 16 bits. FP32
// are: layer norms, whose results are rounded; softmax with dropout; products with masks, rounded
// after; sums over rows; the loss; and the gradients of weights, which no micro-batch rounds. A sum
// x + y * mask is rounded twice, after the product and after the addition; a device that has our
// kernel rounds it once.
//
// embedding   y = wte[token] + wpe[position]; y = y * mask(0)                           [B, T, d]
//   backward  dy = dy * mask(0); dwte = embedding_dense_backward(dy);
//             dwpe[:T] = sum of dy over samples, the other rows 0; if the batch has positions
//             (documents share rows), dwpe = embedding_dense_backward(dy) too
//
// block       h1 = layer_norm(x)
//             q, k, v = thirds of addmm(b, h1, W) as [B, heads, T, d / heads]
//             a = the causal attention of worker/models/attention, whose `drop` multiplies by
//                 mask(0); with positions, a token sees only the earlier ones of its document
//             x2 = x + addmm(b, a, W) * mask(1)
//             f = addmm(b, layer_norm(x2), W); g = gelu(f, "tanh")
//             y = x2 + addmm(b, g, W) * mask(2)
//   backward  recomputes up to g (y itself is not needed), then for y = addmm(b, u, W):
//             db = dy.sum(0); dW = mm(u^T, dy); du = mm(dy, W'^T); the residual is dx2 = dy +
//             (through the MLP), dx = dx2 + (through the attention); layer norm and gelu by
//             LibTorch's own derivatives, attention by that of attention.h
//
// head        h = layer_norm(x) for all N rows; then for each block of loss_block_tokens rows, in
//             order: l = log_softmax(mm(h, W^T)); loss = sum of -l[label] in double, row by row;
//             dl = log_softmax's derivative of -2^-k at the label (0 in rows without a label), both
//             by our kernel on a device that has it; dW = mm(dl^T, h) for the first block,
//             addmm_(dl^T, h) into it for the others; dh = mm(dl, W'); last, layer norm's
//             derivative for all N rows
//
// A gradient is added to the sum of earlier micro-batches, if there is one; on a device, products
// add to it.

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/addmm.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/embedding_dense_backward.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/gelu_backward.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/native_layer_norm.h"
#include "ATen/ops/native_layer_norm_backward.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/legality.h"
#include "base/status_macros.h"
#include "worker/exec/device_kernels.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/attention/attention.h"
#include "worker/models/gradient_sums.h"
#include "worker/models/loss_head.h"
#include "worker/models/model_stages.h"
#include "worker/models/program_ops.h"
#include "worker/models/stage_inputs.h"

namespace eps {
namespace {

using at::Tensor;

// Sites of a stage's dropout masks.
constexpr uint16_t kEmbeddingSite = 0;
constexpr uint16_t kAttentionSite = 0;
constexpr uint16_t kProjectionSite = 1;
constexpr uint16_t kMlpSite = 2;

// Returns the use of `stage` whose tensor's name ends with `suffix`.
absl::StatusOr<size_t> FindUse(const JobSpec& spec, StageId stage, const std::string& suffix) {
  const StageSpec& stage_spec = spec.stages[stage.value()];
  for (size_t use = 0; use < stage_spec.uses.size(); ++use) {
    if (absl::EndsWith(spec.tensors[stage_spec.uses[use].tensor.value()].name, suffix)) return use;
  }
  return absl::InvalidArgumentError(absl::StrCat("stage ", stage_spec.name,
                                                 " of the job has no tensor *", suffix,
                                                 ": not the layout of a gpt2 model"));
}

// The part that all stages share: sizes and random masks.
class Gpt2Stage : public TorchStage {
 public:
  Gpt2Stage(const JobSpec& spec, StageId stage)
      : spec_(spec),
        stage_(stage),
        type_(ScalarTypeOf(ElementTypeOf(spec.training.precision))),
        eps_(spec.model.gpt2.layer_norm_epsilon),
        width_(spec.model.gpt2.n_embd) {}

  at::ScalarType type() const override { return type_; }

 protected:
  const Gpt2Config& config() const { return spec_.model.gpt2; }

  // Returns a probability of the model's config as it applies to this micro-batch.
  static double DropProbability(const MicroBatch& batch, double configured) {
    return batch.held_out ? 0.0 : configured;
  }
  // Returns the product of `x` and the mask of one site; `x` itself if nothing is dropped.
  Tensor Dropped(const MicroBatch& batch, uint16_t site, double p, const Tensor& x) const {
    return p > 0 ? Drop(MaskKey(spec_, stage_, batch, site), p, x) : x;
  }
  // Returns `residual` plus that product; it may use the memory of `x`.
  Tensor PlusDropped(const MicroBatch& batch, uint16_t site, double configured,
                     const Tensor& residual, const Tensor& x) const {
    const double p = DropProbability(batch, configured);
    return p > 0 ? Drop(MaskKey(spec_, stage_, batch, site), p, x, residual) : x.add_(residual);
  }

  const JobSpec& spec_;
  const StageId stage_;
  const at::ScalarType type_;  // of weights and activations
  const double eps_;
  const int64_t width_;
};

// Returns `x` as FP32; the same tensor if it is.
Tensor Wide(const Tensor& x) { return x.to(at::kFloat); }

// Returns the sums; undefined ones for `uses` tensors if there are none.
StageTensors SumsOr(StageTensors sums, size_t uses) {
  sums.resize(uses);
  return sums;
}

// A layer norm's output and what its derivative needs.
struct Norm {
  Tensor y, mean, rstd;
};

Norm LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  Norm norm;
  std::tie(norm.y, norm.mean, norm.rstd) =
      at::native_layer_norm(Wide(x), {x.size(-1)}, Wide(weight), Wide(bias), eps);
  norm.y = norm.y.to(x.scalar_type());
  return norm;
}

// Returns dx; adds to the gradients of weight and bias.
Tensor LayerNormBackward(const Tensor& dy, const Tensor& x, const Norm& norm, const Tensor& weight,
                         const Tensor& bias, Tensor* dweight, Tensor* dbias) {
  auto [dx, dw, db] =
      at::native_layer_norm_backward(Wide(dy), Wide(x), {x.size(-1)}, norm.mean, norm.rstd,
                                     Wide(weight), Wide(bias), {true, true, true});
  AddTerm(std::move(dw), dweight);
  AddTerm(std::move(db), dbias);
  return dx.to(x.scalar_type());
}

// Adds to the gradients of W and b in y = x W + b.
void LinearBackward(const Tensor& dy, const Tensor& x, Tensor* dweight, Tensor* dbias) {
  AddTerm(dy.sum({0}, /*keepdim=*/false, at::kFloat), dbias);
  AddProduct(x.t(), dy, dweight);
}

// Token and position embeddings.
class EmbeddingStage final : public Gpt2Stage {
 public:
  EmbeddingStage(const JobSpec& spec, StageId stage, size_t wte, size_t wpe)
      : Gpt2Stage(spec, stage), wte_(wte), wpe_(wpe) {}

  Tensor Forward(const StageTensors& weights, const MicroBatch& batch,
                 const Tensor& /*in*/) const override {
    const Tensor& wpe = weights[wpe_];
    TORCH_CHECK(batch.seq_len <= wpe.size(0), "a sample of ", batch.seq_len,
                " tokens does not fit into n_positions = ", wpe.size(0),
                "; change training.seq_len");
    Tensor y = at::embedding(weights[wte_], IdTensor(batch.tokens, batch, wpe));
    if (batch.positions.empty()) {
      y.add_(wpe.narrow(0, 0, batch.seq_len));
    } else {
      y.add_(at::embedding(wpe, IdTensor(batch.positions, batch, wpe)));
    }
    return Dropped(batch, kEmbeddingSite, DropProbability(batch, config().embd_pdrop), y);
  }

  TorchBackward Backward(const StageTensors& weights, const StageTensors& /*for_input_gradient*/,
                         const MicroBatch& batch, BackwardInputs inputs) const override {
    const Tensor dy = Wide(Dropped(batch, kEmbeddingSite, config().embd_pdrop, inputs.grad_out));
    TorchBackward out;
    out.gradient = SumsOr(std::move(inputs.sums), weights.size());
    AddTerm(LookupBackward(dy, batch.tokens, batch, weights[wte_]), &out.gradient[wte_]);
    if (!batch.positions.empty()) {
      AddTerm(LookupBackward(dy, batch.positions, batch, weights[wpe_]), &out.gradient[wpe_]);
      return out;
    }
    Tensor dwpe = at::zeros(weights[wpe_].sizes(), dy.options());
    dwpe.narrow(0, 0, batch.seq_len).copy_(dy.sum(0));
    AddTerm(std::move(dwpe), &out.gradient[wpe_]);
    return out;
  }

 private:
  // Returns the gradient of the table whose rows `ids` selected.
  static Tensor LookupBackward(const Tensor& dy, const std::vector<int32_t>& ids,
                               const MicroBatch& batch, const Tensor& table) {
    return at::embedding_dense_backward(dy, IdTensor(ids, batch, dy), table.size(0),
                                        /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
  }

  const size_t wte_, wpe_;
};

// Indexes of a block's tensors among the uses of its stage.
struct BlockUses {
  size_t ln_1_weight, ln_1_bias, attn_weight, attn_bias, attn_proj_weight, attn_proj_bias;
  size_t ln_2_weight, ln_2_bias, fc_weight, fc_bias, mlp_proj_weight, mlp_proj_bias;
};

// One transformer block.
class BlockStage final : public Gpt2Stage {
 public:
  BlockStage(const JobSpec& spec, StageId stage, const BlockUses& uses)
      : Gpt2Stage(spec, stage), u_(uses), heads_(spec.model.gpt2.n_head) {}

  Tensor Forward(const StageTensors& w, const MicroBatch& batch, const Tensor& in) const override {
    std::unique_ptr<KeptPass> kept;
    return ForwardAndKeep(w, batch, in, &kept);
  }

  Tensor ForwardAndKeep(const StageTensors& w, const MicroBatch& batch, const Tensor& in,
                        std::unique_ptr<KeptPass>* kept) const override {
    auto pass =
        std::make_unique<Pass>(RunTo(w, batch, in.view({-1, width_}), AttentionDropOf(batch, in)));
    const Tensor y = PlusDropped(
        batch, kMlpSite, config().resid_pdrop, pass->x2,
        at::addmm(w[u_.mlp_proj_bias], at::gelu(pass->f, "tanh"), w[u_.mlp_proj_weight]));
    *kept = std::move(pass);
    return y.view(in.sizes());
  }

  TorchBackward Backward(const StageTensors& w, const StageTensors& for_input_gradient,
                         const MicroBatch& batch, BackwardInputs inputs) const override {
    const StageTensors& wt = for_input_gradient;
    const Tensor x = inputs.in.view({-1, width_});
    const Tensor dy = inputs.grad_out.view({-1, width_});
    TorchBackward out;
    out.gradient = SumsOr(std::move(inputs.sums), w.size());
    const AttentionDrop drop = AttentionDropOf(batch, x);
    Pass pass = inputs.kept != nullptr ? std::move(static_cast<Pass&>(*inputs.kept))
                                       : RunTo(w, batch, x, drop);

    Tensor dx2 = MlpBackward(w, wt, batch, &pass, dy, &out.gradient);
    const Tensor dprojected = Dropped(batch, kProjectionSite, config().resid_pdrop, dx2);
    LinearBackward(dprojected, pass.merged, &out.gradient[u_.attn_proj_weight],
                   &out.gradient[u_.attn_proj_bias]);
    const Tensor dmerged = at::mm(dprojected, wt[u_.attn_proj_weight].t());
    const Tensor dpacked = Pack(pass.attended.backward(PerHead(dmerged, batch), drop));
    Norm& norm1 = pass.norm1;
    LinearBackward(dpacked, norm1.y, &out.gradient[u_.attn_weight], &out.gradient[u_.attn_bias]);
    norm1.y = at::mm(dpacked, wt[u_.attn_weight].t());
    Tensor dx = LayerNormBackward(norm1.y, x, norm1, w[u_.ln_1_weight], w[u_.ln_1_bias],
                                  &out.gradient[u_.ln_1_weight], &out.gradient[u_.ln_1_bias]);
    out.grad_in = dx.add_(dx2).view(inputs.in.sizes());
    return out;
  }

 private:
  // The part of a forward pass that the backward pass needs.
  struct Pass final : KeptPass {
    Norm norm1, norm2;
    Attended attended;
    Tensor merged, x2, f;
  };

  // Computes the block up to f.
  Pass RunTo(const StageTensors& w, const MicroBatch& batch, const Tensor& x,
             const AttentionDrop& drop) const {
    Pass pass;
    pass.norm1 = LayerNorm(x, w[u_.ln_1_weight], w[u_.ln_1_bias], eps_);
    pass.attended =
        Attend(Split(at::addmm(w[u_.attn_bias], pass.norm1.y, w[u_.attn_weight]), batch),
               batch.positions.empty() ? Tensor() : SeenTokens(batch, x), drop);
    pass.merged = Merge(pass.attended.out);
    pass.x2 = Project(w, batch, pass.merged, x);
    pass.norm2 = LayerNorm(pass.x2, w[u_.ln_2_weight], w[u_.ln_2_bias], eps_);
    pass.f = at::addmm(w[u_.fc_bias], pass.norm2.y, w[u_.fc_weight]);
    return pass;
  }

  // Returns rows of the full width as [samples, heads, seq, width / heads], without a copy.
  Tensor PerHead(const Tensor& rows, const MicroBatch& batch) const {
    return rows.view({batch.samples, batch.seq_len, heads_, width_ / heads_}).transpose(1, 2);
  }
  // The inverse.
  Tensor Merge(const Tensor& per_head) const {
    return per_head.transpose(1, 2).reshape({-1, width_});
  }
  // Returns the thirds of packed rows per head, without a copy.
  AttentionThirds Split(const Tensor& packed, const MicroBatch& batch) const {
    const auto third = [&](int64_t i) {
      return PerHead(packed.narrow(1, i * width_, width_), batch);
    };
    return {third(0), third(1), third(2)};
  }
  // The inverse, with a copy.
  Tensor Pack(const AttentionThirds& x) const {
    return at::cat({Merge(x.q), Merge(x.k), Merge(x.v)}, 1);
  }

  // Returns the multiplication by the attention's mask; nullptr if nothing is dropped. `batch` must
  // outlive it. A host draws slowly: there, the mask is drawn here and kept for all calls.
  AttentionDrop AttentionDropOf(const MicroBatch& batch, const Tensor& like) const {
    const double p = DropProbability(batch, config().attn_pdrop);
    if (p == 0) return nullptr;
    if (DeviceKernels::ForOrNull(like) != nullptr) {
      return [this, &batch, p](const Tensor& x) { return Dropped(batch, kAttentionSite, p, x); };
    }
    const Tensor mask = DropoutMask(MaskKey(spec_, stage_, batch, kAttentionSite), p,
                                    {batch.samples, heads_, batch.seq_len, batch.seq_len}, like);
    return [mask](const Tensor& x) { return x.mul(mask); };
  }

  // Returns x + the projection of the attention's output.
  Tensor Project(const StageTensors& w, const MicroBatch& batch, const Tensor& merged,
                 const Tensor& x) const {
    return PlusDropped(batch, kProjectionSite, config().resid_pdrop, x,
                       at::addmm(w[u_.attn_proj_bias], merged, w[u_.attn_proj_weight]));
  }

  // The second half of the block from x2: adds to the gradients of its tensors and returns dx2.
  // `wt` is for_input_gradient of Backward. Drops what only this half needs.
  Tensor MlpBackward(const StageTensors& w, const StageTensors& wt, const MicroBatch& batch,
                     Pass* pass, const Tensor& dy, StageTensors* gradient) const {
    Norm norm2 = std::move(pass->norm2);
    const Tensor f = std::move(pass->f), x2 = std::move(pass->x2);
    const Tensor dm = Dropped(batch, kMlpSite, config().resid_pdrop, dy);
    Tensor df = at::mm(dm, wt[u_.mlp_proj_weight].t());
    LinearBackward(dm, at::gelu(f, "tanh"), &(*gradient)[u_.mlp_proj_weight],
                   &(*gradient)[u_.mlp_proj_bias]);
    df = at::gelu_backward(df, f, "tanh");
    LinearBackward(df, norm2.y, &(*gradient)[u_.fc_weight], &(*gradient)[u_.fc_bias]);
    norm2.y = at::mm(df, wt[u_.fc_weight].t());
    Tensor dx2 = LayerNormBackward(norm2.y, x2, norm2, w[u_.ln_2_weight], w[u_.ln_2_bias],
                                   &(*gradient)[u_.ln_2_weight], &(*gradient)[u_.ln_2_bias]);
    return dx2.add_(dy);
  }

  const BlockUses u_;
  const int64_t heads_;
};

// The final layer norm, the output matrix and the loss.
class HeadStage final : public Gpt2Stage {
 public:
  HeadStage(const JobSpec& spec, StageId stage, size_t ln_weight, size_t ln_bias, size_t lm_weight)
      : Gpt2Stage(spec, stage), ln_weight_(ln_weight), ln_bias_(ln_bias), lm_weight_(lm_weight) {}

  TorchBackward Backward(const StageTensors& w, const StageTensors& for_input_gradient,
                         const MicroBatch& batch, BackwardInputs inputs) const override {
    const Tensor x = inputs.in.view({-1, width_});
    const Norm norm = LayerNorm(x, w[ln_weight_], w[ln_bias_], eps_);
    TorchBackward out;
    out.gradient = SumsOr(std::move(inputs.sums), w.size());
    Tensor& dweight = out.gradient[lm_weight_];
    Tensor of_blocks;
    if (AddsWithinProducts(x)) of_blocks = std::move(dweight);  // else the blocks are a term
    const Tensor dh = at::empty_like(x);
    const Tensor labels = IdTensor(batch.labels, batch, x).view({-1});
    const int64_t rows = x.size(0);
    const int64_t block = spec_.training.loss_block_tokens;
    out.label_log_p = at::empty({rows}, x.options().dtype(at::kFloat));
    for (int64_t first = 0; first < rows; first += block) {
      LossBlock(w[lm_weight_], for_input_gradient[lm_weight_], norm.y, labels, first,
                std::min(block, rows - first), std::ldexp(1.0, -inputs.loss_scale_log2), dh,
                out.label_log_p, &of_blocks);
    }
    AddTerm(std::move(of_blocks), &dweight);
    out.grad_in = LayerNormBackward(dh, x, norm, w[ln_weight_], w[ln_bias_],
                                    &out.gradient[ln_weight_], &out.gradient[ln_bias_])
                      .view(inputs.in.sizes());
    return out;
  }

  Tensor LabelLogP(const StageTensors& w, const MicroBatch& batch, const Tensor& in,
                   Tensor* /*predictions_or_null*/) const override {
    const Tensor x = in.view({-1, width_});
    const Tensor h = LayerNorm(x, w[ln_weight_], w[ln_bias_], eps_).y;
    const Tensor labels = IdTensor(batch.labels, batch, x).view({-1});
    const int64_t block = spec_.training.loss_block_tokens;
    const Tensor label_log_p = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    for (int64_t first = 0; first < x.size(0); first += block) {
      const int64_t count = std::min(block, x.size(0) - first);
      WriteLabelLogP(at::mm(h.narrow(0, first, count), w[lm_weight_].t()),
                     labels.narrow(0, first, count), label_log_p.narrow(0, first, count));
    }
    return label_log_p;
  }

  Tensor Logits(const StageTensors& w, const Tensor& in) const override {
    return Wide(at::mm(LayerNorm(in, w[ln_weight_], w[ln_bias_], eps_).y, w[lm_weight_].t()));
  }

 private:
  // Computes loss and gradients of rows [first, first + count): writes these rows of `label_log_p`
  // and `dh`, and adds to the gradient of the output matrix.
  void LossBlock(const Tensor& weight, const Tensor& for_input_gradient, const Tensor& h_all,
                 const Tensor& labels_all, int64_t first, int64_t count, double scale,
                 const Tensor& dh, const Tensor& label_log_p, Tensor* dweight) const {
    const Tensor h = h_all.narrow(0, first, count);
    const Tensor scores =
        CrossEntropyGradient(at::mm(h, weight.t()), labels_all.narrow(0, first, count), scale,
                             spec_.training.label_smoothing, label_log_p.narrow(0, first, count));
    AddWithinProduct(scores.t(), h, dweight);
    Tensor dh_block = dh.narrow(0, first, count);
    at::mm_out(dh_block, scores, for_input_gradient);
  }

  const size_t ln_weight_, ln_bias_, lm_weight_;
};

absl::StatusOr<BlockUses> FindBlockUses(const JobSpec& spec, StageId stage) {
  BlockUses uses;
  const std::pair<size_t*, const char*> places[] = {
      {&uses.ln_1_weight, ".ln_1.weight"},
      {&uses.ln_1_bias, ".ln_1.bias"},
      {&uses.attn_weight, ".attn.c_attn.weight"},
      {&uses.attn_bias, ".attn.c_attn.bias"},
      {&uses.attn_proj_weight, ".attn.c_proj.weight"},
      {&uses.attn_proj_bias, ".attn.c_proj.bias"},
      {&uses.ln_2_weight, ".ln_2.weight"},
      {&uses.ln_2_bias, ".ln_2.bias"},
      {&uses.fc_weight, ".mlp.c_fc.weight"},
      {&uses.fc_bias, ".mlp.c_fc.bias"},
      {&uses.mlp_proj_weight, ".mlp.c_proj.weight"},
      {&uses.mlp_proj_bias, ".mlp.c_proj.bias"},
  };
  for (const auto& [use, suffix] : places) {
    EPS_ASSIGN_OR_RETURN(*use, FindUse(spec, stage, suffix));
  }
  return uses;
}

// As TorchStageFactory. Returns InvalidArgument with the name of a tensor that the stage lacks, if
// the layout is not GPT-2's.
absl::StatusOr<std::unique_ptr<TorchStage>> NewGpt2Stage(const JobSpec& spec, StageId stage) {
  if (stage.value() == 0) {
    EPS_ASSIGN_OR_RETURN(const size_t wte, FindUse(spec, stage, ".wte.weight"));
    EPS_ASSIGN_OR_RETURN(const size_t wpe, FindUse(spec, stage, ".wpe.weight"));
    return std::make_unique<EmbeddingStage>(spec, stage, wte, wpe);
  }
  if (stage.value() + 1 < spec.stages.size()) {
    EPS_ASSIGN_OR_RETURN(const BlockUses uses, FindBlockUses(spec, stage));
    return std::make_unique<BlockStage>(spec, stage, uses);
  }
  EPS_ASSIGN_OR_RETURN(const size_t ln_weight, FindUse(spec, stage, ".ln_f.weight"));
  EPS_ASSIGN_OR_RETURN(const size_t ln_bias, FindUse(spec, stage, ".ln_f.bias"));
  EPS_ASSIGN_OR_RETURN(
      const size_t lm_weight,
      FindUse(spec, stage, spec.model.gpt2.tie_word_embeddings ? ".wte.weight" : "lm_head.weight"));
  return std::make_unique<HeadStage>(spec, stage, ln_weight, ln_bias, lm_weight);
}

const ProgramRegistration kGpt2(ModelType::kGpt2, NewGpt2Stage);

}  // namespace
}  // namespace eps
