// Prints the time of one micro-batch of GPT-2, stage by stage (with recomputation, without servers)
// and as one autograd graph, and the peak memory of each: the cost of the relay itself.
//
//   gpt2_speed [layers width heads seq samples vocab threads]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/addmm.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "base/check.h"
#include "base/job/initial_values.h"
#include "base/job/layout/model_layout.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

using at::Tensor;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The model's size.
struct Shape {
  int layers = 6, width = 256, heads = 8, seq = 256, samples = 8, vocab = 256, threads = 2;
};

JobSpec MakeSpec(const Shape& shape) {
  JobSpec spec;
  Gpt2Config& c = spec.model.gpt2;
  c.n_layer = shape.layers;
  c.n_embd = shape.width;
  c.n_head = shape.heads;
  c.n_positions = shape.seq;
  c.vocab_size = shape.vocab;
  spec.training.seq_len = static_cast<uint32_t>(shape.seq);
  EPS_CHECK(BuildLayout(0.01, &spec).ok());
  return spec;
}

MicroBatch MakeBatch(const Shape& shape) {
  MicroBatch batch;
  batch.step = Step(1);
  batch.samples = static_cast<uint32_t>(shape.samples);
  batch.seq_len = static_cast<uint32_t>(shape.seq);
  for (int i = 0; i < shape.samples * shape.seq; ++i) {
    batch.tokens.push_back((i * 7919) % shape.vocab);
    batch.labels.push_back((i * 104729) % shape.vocab);
  }
  return batch;
}

// Runs forward and backward of one micro-batch through all stages.
class Staged {
 public:
  Staged(const JobSpec& spec, StageRuntime* runtime) : spec_(spec), runtime_(runtime) {
    for (uint32_t s = 0; s < spec.stages.size(); ++s) {
      hosts_.push_back(runtime->NewHostStage(StageId(s)).value());
      gradients_.push_back(runtime->NewHostStage(StageId(s)).value());
      for (size_t use = 0; use < spec.stages[s].uses.size(); ++use) {
        const TensorId id = spec.stages[s].uses[use].tensor;
        FillInitialValues(
            spec, id, 0,
            absl::MakeSpan(hosts_[s]->tensor(use), spec.tensors[id.value()].elements()));
      }
    }
  }

  double Step(const MicroBatch& batch) {
    const uint32_t stages = static_cast<uint32_t>(spec_.stages.size());
    std::vector<ActivationPtr> stash(stages);
    ActivationPtr x;
    for (uint32_t s = 0; s + 1 < stages; ++s) {
      auto weights = runtime_->Load(StageId(s), hosts_[s]);
      ActivationPtr y = *runtime_->program(StageId(s)).Forward(*weights, batch, x);
      if (x != nullptr) stash[s] = *runtime_->Stash(std::move(x));
      x = std::move(y);
    }
    ActivationPtr grad;
    double loss = 0;
    for (uint32_t s = stages; s-- > 0;) {
      auto weights = runtime_->Load(StageId(s), hosts_[s]);
      if (stash[s] != nullptr) x = *runtime_->Unstash(std::move(stash[s]));
      auto out = *runtime_->program(StageId(s)).Backward(*weights, batch, x, grad, 0, nullptr);
      x = nullptr;
      grad = std::move(out.grad_in);
      loss += out.loss.sum;
      EPS_CHECK(runtime_->ToHost(StageId(s), *out.gradient, gradients_[s].get()).ok());
    }
    return loss;
  }

 private:
  const JobSpec& spec_;
  StageRuntime* const runtime_;
  std::vector<std::shared_ptr<HostStage>> hosts_, gradients_;
};

// The same model as one graph, as a PyTorch user writes it.
class Plain {
 public:
  explicit Plain(const JobSpec& spec) : c_(spec.model.gpt2) {
    for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
      const TensorSpec& tensor = spec.tensors[t];
      std::vector<int64_t> shape = {tensor.rows, tensor.cols};
      if (tensor.rank == 1) shape = {tensor.cols};
      Tensor leaf = at::empty(shape, at::kFloat);
      FillInitialValues(spec, TensorId(t), 0,
                        absl::MakeSpan(leaf.data_ptr<float>(), tensor.elements()));
      leaves_.push_back(leaf.set_requires_grad(true));
    }
  }

  double Step(const MicroBatch& batch) {
    const at::AutoGradMode with_grad(true);
    const int64_t b = batch.samples, t = batch.seq_len, d = c_.n_embd / c_.n_head;
    const Tensor tokens =
        at::from_blob(const_cast<int32_t*>(batch.tokens.data()), {b, t}, at::kInt);
    const Tensor labels =
        at::from_blob(const_cast<int32_t*>(batch.labels.data()), {b * t}, at::kInt).to(at::kLong);
    Tensor x = at::embedding(leaves_[0], tokens) + leaves_[1].narrow(0, 0, t);
    for (int layer = 0; layer < c_.n_layer; ++layer) {
      const Tensor* w = &leaves_[2 + 12 * layer];
      auto linear = [&](const Tensor& in, int i) {
        return at::addmm(w[i + 1], in.reshape({b * t, -1}), w[i]).view({b, t, -1});
      };
      std::vector<Tensor> qkv =
          linear(at::layer_norm(x, {c_.n_embd}, w[0], w[1]), 2).split(c_.n_embd, 2);
      for (Tensor& third : qkv) third = third.view({b, t, c_.n_head, d}).transpose(1, 2);
      const Tensor a =
          at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true).transpose(1, 2);
      x = x + linear(a, 4);
      x = x + linear(at::gelu(linear(at::layer_norm(x, {c_.n_embd}, w[6], w[7]), 8), "tanh"), 10);
    }
    const Tensor* w = &leaves_[2 + 12 * c_.n_layer];
    const Tensor h = at::layer_norm(x, {c_.n_embd}, w[0], w[1]);
    const Tensor loss = at::cross_entropy_loss(at::matmul(h, leaves_[0].t()).view({b * t, -1}),
                                               labels, {}, at::Reduction::Sum);
    torch::autograd::backward({loss}, {});
    return loss.item<float>();
  }

 private:
  const Gpt2Config& c_;
  std::vector<Tensor> leaves_;
};

// Times of one way to compute a step.
struct Times {
  std::vector<double> seconds;
  double loss = 0;
  uint64_t peak_bytes = 0;

  template <class Model>
  void Measure(const MicroBatch& batch, Model* model) {
    TensorMemory::Get().ResetPeak();
    const double begin = Seconds();
    loss = model->Step(batch);
    seconds.push_back(Seconds() - begin);
    peak_bytes = std::max(peak_bytes, TensorMemory::Get().peak_bytes());
  }
  double Print(const char* name, int tokens) {
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    std::printf("%-10s median %8.1f ms  best %8.1f ms  loss %.6f  peak %7.1f MiB\n", name,
                median * 1e3, seconds[0] * 1e3, loss / tokens,
                static_cast<double>(peak_bytes) / (1 << 20));
    return seconds[0];
  }
};

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  eps::Shape shape;
  int* const fields[] = {&shape.layers,  &shape.width, &shape.heads,  &shape.seq,
                         &shape.samples, &shape.vocab, &shape.threads};
  for (int i = 1; i < argc && i <= 7; ++i) *fields[i - 1] = std::atoi(argv[i]);
  const eps::JobSpec spec = eps::MakeSpec(shape);
  eps::RuntimeOptions options;
  options.device = "cpu";
  options.threads = shape.threads;
  auto runtime = eps::NewTorchRuntime(spec, eps::NewModelStage, options, nullptr);
  EPS_CHECK_MSG(runtime.ok(), runtime.status());
  const eps::MicroBatch batch = eps::MakeBatch(shape);
  std::printf("%s\n", (*runtime)->compute_profile().c_str());
  eps::Plain plain(spec);
  eps::Staged staged(spec, runtime->get());
  eps::Times plain_times, staged_times;
  plain.Step(batch);
  staged.Step(batch);
  const double begin = eps::Seconds();
  while (eps::Seconds() - begin < 12) {  // alternates, so that other programs affect both
    plain_times.Measure(batch, &plain);
    staged_times.Measure(batch, &staged);
  }
  const int tokens = shape.samples * shape.seq;
  const double plain_seconds = plain_times.Print("one graph", tokens);
  const double staged_seconds = staged_times.Print("stages", tokens);
  std::printf("ratio of the best speeds %.3f\n", plain_seconds / staged_seconds);
  return 0;
}
