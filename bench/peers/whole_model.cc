#include "bench/peers/whole_model.h"

#include <algorithm>
#include <utility>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/_foreach_add.h"
#include "ATen/ops/_foreach_mul.h"
#include "ATen/ops/_foreach_norm.h"
#include "ATen/ops/_fused_adamw.h"
#include "ATen/ops/addmm.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "base/check.h"
#include "base/job/initial_values.h"
#include "base/job/schedule.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "worker/exec/tensor_memory.h"

namespace eps {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kTensorsOfBlock = 12;
constexpr double kClipEpsilon = 1e-6;  // as in torch.nn.utils.clip_grad_norm_

// A block that keeps only its input. The backward pass runs it again and accumulates its gradients
// directly into the weights.
class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const WholeModel* model,
                        int64_t layer) {
    context->save_for_backward({x});
    context->saved_data["model"] = reinterpret_cast<int64_t>(model);
    context->saved_data["layer"] = layer;
    return model->Block(static_cast<size_t>(layer), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto* model = reinterpret_cast<const WholeModel*>(context->saved_data["model"].toInt());
    const auto layer = static_cast<size_t>(context->saved_data["layer"].toInt());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const at::AutoGradMode with_grad(true);
    torch::autograd::backward({model->Block(layer, x)}, {gradients[0]});
    return {x.grad(), Tensor(), Tensor()};
  }
};

Tensor Ids(const std::vector<int32_t>& ids) {
  return at::from_blob(const_cast<int32_t*>(ids.data()), {static_cast<int64_t>(ids.size())},
                       at::TensorOptions().dtype(at::kInt))
      .to(at::kLong);
}

}  // namespace

void PrepareLibTorch(int threads) {
  TensorMemory::Get();
  at::Context::setFlushDenormal(true);
  at::set_num_threads(threads);
}

WholeModel::WholeModel(const JobSpec& spec, bool recompute)
    : spec_(spec), config_(spec.model.gpt2), recompute_(recompute) {
  EPS_CHECK(spec.model.type == ModelType::kGpt2);
  EPS_CHECK(config_.resid_pdrop == 0 && config_.embd_pdrop == 0 && config_.attn_pdrop == 0);
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    const TensorSpec& tensor = spec.tensors[t];
    std::vector<int64_t> shape = {tensor.rows, tensor.cols};
    if (tensor.rank == 1) shape = {tensor.cols};
    Tensor weight = at::empty(shape, at::kFloat);
    FillInitialValues(spec, TensorId(t), 0,
                      absl::MakeSpan(weight.mutable_data_ptr<float>(), tensor.elements()));
    exp_avgs_.push_back(at::zeros_like(weight));
    exp_avg_sqs_.push_back(at::zeros_like(weight));
    updates_.push_back(at::zeros({}, at::kFloat));
    weights_.push_back(weight.requires_grad_(true));
  }
}

Tensor WholeModel::Block(size_t layer, const Tensor& x) const {
  const Tensor* const w = &weights_[2 + kTensorsOfBlock * layer];
  const int64_t samples = x.size(0), seq = x.size(1), width = config_.n_embd;
  const auto linear = [](const Tensor& in, const Tensor& weight, const Tensor& bias) {
    return at::addmm(bias, in, weight);
  };
  const auto norm = [&](const Tensor& in, const Tensor& weight, const Tensor& bias) {
    return at::layer_norm(in, {width}, weight, bias, config_.layer_norm_epsilon);
  };
  const Tensor rows = x.view({-1, width});
  std::vector<Tensor> qkv = linear(norm(rows, w[0], w[1]), w[2], w[3]).split(width, 1);
  for (Tensor& third : qkv) {
    third = third.view({samples, seq, config_.n_head, width / config_.n_head}).transpose(1, 2);
  }
  const Tensor attended = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                           /*dropout_p=*/0.0, /*is_causal=*/true);
  const Tensor middle = rows + linear(attended.transpose(1, 2).reshape({-1, width}), w[4], w[5]);
  const Tensor up = linear(norm(middle, w[6], w[7]), w[8], w[9]);
  return (middle + linear(at::gelu(up, "tanh"), w[10], w[11])).view(x.sizes());
}

double WholeModel::AddMicroBatch(const MicroBatch& batch, uint64_t step_tokens) {
  const at::AutoGradMode with_grad(true);
  const Tensor tokens = Ids(batch.tokens).view({batch.samples, batch.seq_len});
  Tensor x = at::embedding(weights_[0], tokens) + weights_[1].narrow(0, 0, batch.seq_len);
  for (int64_t layer = 0; layer < config_.n_layer; ++layer) {
    x = recompute_ ? Recomputed::apply(x, this, layer) : Block(static_cast<size_t>(layer), x);
  }
  const Tensor* const w = &weights_[2 + kTensorsOfBlock * static_cast<size_t>(config_.n_layer)];
  const Tensor h = at::layer_norm(x, {config_.n_embd}, w[0], w[1], config_.layer_norm_epsilon)
                       .view({-1, config_.n_embd});
  const Tensor& output = config_.tie_word_embeddings ? weights_[0] : w[2];
  const Tensor loss = at::cross_entropy_loss(at::matmul(h, output.t()), Ids(batch.labels),
                                             /*weight=*/{}, at::Reduction::Sum, kIgnoreLabel);
  torch::autograd::backward({loss / static_cast<double>(step_tokens)}, {});
  return loss.item<double>();
}

double WholeModel::ClipFactor(double norm) const {
  const TrainingSpec& t = spec_.training;
  if (t.clip == Clip::kNone) return 1;
  const double clipped = t.clip == Clip::kLagged ? last_norm_ : norm;
  if (clipped == 0) return 1;
  return std::min(1.0, t.max_grad_norm / (clipped + kClipEpsilon));
}

double WholeModel::Update() {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const Tensor& weight : weights_) gradients.push_back(weight.grad());
  const double norm = at::stack(at::_foreach_norm(gradients)).norm().item<double>();
  at::_foreach_mul_(gradients, ClipFactor(norm));
  at::_foreach_add_(updates_, 1);
  ++update_;
  const OptimizerSpec& o = spec_.optimizer;
  const double lr = LearningRate(spec_.schedule, o.lr, update_, spec_.training.steps);
  for (uint32_t g = 0; g < spec_.groups.size(); ++g) {
    std::vector<Tensor> weights, grads, exp_avgs, exp_avg_sqs, updates;
    for (size_t t = 0; t < weights_.size(); ++t) {
      if (spec_.tensors[t].group != GroupId(g)) continue;
      weights.push_back(weights_[t]);
      grads.push_back(gradients[t]);
      exp_avgs.push_back(exp_avgs_[t]);
      exp_avg_sqs.push_back(exp_avg_sqs_[t]);
      updates.push_back(updates_[t]);
    }
    if (weights.empty()) continue;
    at::_fused_adamw_(weights, grads, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, updates, lr,
                      o.beta1, o.beta2, spec_.groups[g].weight_decay, o.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  for (Tensor& weight : weights_) weight.mutable_grad() = Tensor();
  last_norm_ = norm;
  return norm;
}

}  // namespace eps
