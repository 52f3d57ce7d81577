// Compares GPT-2 stage by stage with one autograd graph over the whole model that shares no code
// with it: same loss, same gradients, bit for bit.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
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
#include "ATen/ops/ones.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "base/job/keys.h"
#include "base/job/layout/model_layout.h"
#include "base/numerics/reduction_tree.h"
#include "base/numerics/rng.h"
#include "c10/util/BFloat16.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

using at::Tensor;

// One model and batch shape to compare.
struct Case {
  std::string name;
  int layers, heads, width, vocab, seq;
  uint32_t samples, micro_batches, loss_block;
  bool tied;
  double resid_pdrop, embd_pdrop, attn_pdrop;
  int loss_scale_log2;
  bool padded;  // some positions do not count
  double smoothing = 0;
};

JobSpec MakeSpec(const Case& c) {
  JobSpec spec;
  spec.name = "test";
  Gpt2Config& gpt2 = spec.model.gpt2;
  gpt2.n_layer = c.layers;
  gpt2.n_head = c.heads;
  gpt2.n_embd = c.width;
  gpt2.vocab_size = c.vocab;
  gpt2.n_positions = c.seq + 3;
  gpt2.tie_word_embeddings = c.tied;
  gpt2.resid_pdrop = c.resid_pdrop;
  gpt2.embd_pdrop = c.embd_pdrop;
  gpt2.attn_pdrop = c.attn_pdrop;
  spec.training.micro_batch_size = c.samples;
  spec.training.micro_batches = c.micro_batches;
  spec.training.seq_len = c.seq;
  spec.training.loss_block_tokens = c.loss_block;
  spec.training.label_smoothing = c.smoothing;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

// Returns small, reproducible values that differ everywhere. Biases and norms are not left at 0 and
// 1, which would hide mistakes.
std::vector<std::vector<float>> MakeWeights(const JobSpec& spec) {
  std::vector<std::vector<float>> weights;
  uint32_t state = 12345;
  for (const TensorSpec& tensor : spec.tensors) {
    std::vector<float> values(tensor.elements());
    for (float& v : values) {
      state = state * 1664525u + 1013904223u;
      v = (static_cast<float>(state >> 8) / 16777216.0f - 0.5f) * 0.2f;
      if (tensor.init == Initializer::kOnes) v += 1.0f;
    }
    weights.push_back(std::move(values));
  }
  return weights;
}

MicroBatch MakeBatch(const Case& c, uint32_t index) {
  MicroBatch batch;
  batch.step = Step(3);
  batch.index = index;
  batch.samples = c.samples;
  batch.seq_len = static_cast<uint32_t>(c.seq);
  uint32_t state = 777 + index;
  for (uint32_t i = 0; i < c.samples * batch.seq_len; ++i) {
    state = state * 1664525u + 1013904223u;
    batch.tokens.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(c.vocab)));
    const bool skip = c.padded && (state >> 5) % 4 == 0;
    batch.labels.push_back(
        skip ? kIgnoreLabel : static_cast<int32_t>((state >> 12) % static_cast<uint32_t>(c.vocab)));
  }
  return batch;
}

// Gradients by stage and use, and the loss.
struct StepResult {
  std::vector<std::vector<std::vector<float>>> gradient;
  LossSum loss;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---------------------------------------------------------------------------- by stages

std::shared_ptr<HostStage> LoadHost(const JobSpec& spec, StageId stage, StageRuntime* runtime,
                                    const std::vector<std::vector<float>>& weights) {
  std::shared_ptr<HostStage> host = runtime->NewHostStage(stage).value();
  const auto& uses = spec.stages[stage.value()].uses;
  for (size_t use = 0; use < uses.size(); ++use) {
    const auto& values = weights[uses[use].tensor.value()];
    std::memcpy(host->tensor(use), values.data(), values.size() * sizeof(float));
  }
  return host;
}

// Adds gradients with the runtime's addition.
struct GradientAdd {
  StageRuntime* runtime;
  StageGradientPtr operator()(StageGradientPtr left, StageGradientPtr right) const {
    return runtime->Add(std::move(left), std::move(right));
  }
};

// Runs one part as a relay does: forward stage by stage with a stash, backward with recomputation,
// micro-batches in ascending or descending order.
StepResult RunStages(const Case& c, const JobSpec& spec,
                     const std::vector<std::vector<float>>& weights, StageRuntime* runtime,
                     bool descending) {
  const uint32_t stages = static_cast<uint32_t>(spec.stages.size());
  std::vector<std::vector<ActivationPtr>> stash(stages,
                                                std::vector<ActivationPtr>(c.micro_batches));
  std::vector<ActivationPtr> current(c.micro_batches);
  std::vector<uint32_t> order;
  for (uint32_t u = 0; u < c.micro_batches; ++u) order.push_back(u);
  if (descending) std::reverse(order.begin(), order.end());

  for (uint32_t s = 0; s + 1 < stages; ++s) {
    auto loaded = runtime->Load(StageId(s), LoadHost(spec, StageId(s), runtime, weights));
    for (const uint32_t u : order) {
      auto out = runtime->program(StageId(s)).Forward(*loaded, MakeBatch(c, u), current[u]);
      EXPECT_TRUE(out.ok()) << out.status();
      if (current[u] != nullptr) stash[s][u] = *runtime->Stash(std::move(current[u]));
      current[u] = *std::move(out);
    }
  }
  StepResult result;
  result.gradient.resize(stages);
  std::vector<ActivationPtr> grads(c.micro_batches);
  for (uint32_t s = stages; s-- > 0;) {
    auto loaded = runtime->Load(StageId(s), LoadHost(spec, StageId(s), runtime, weights));
    TreeAccumulator<StageGradientPtr, GradientAdd> sum(c.micro_batches, GradientAdd{runtime});
    for (const uint32_t u : order) {
      ActivationPtr in = std::move(current[u]);
      if (s + 1 < stages && s > 0) in = *runtime->Unstash(std::move(stash[s][u]));
      auto out = runtime->program(StageId(s))
                     .Backward(*loaded, MakeBatch(c, u), in, grads[u], c.loss_scale_log2, nullptr);
      EXPECT_TRUE(out.ok()) << out.status();
      grads[u] = std::move(out->grad_in);
      sum.Insert({u, 1}, std::move(out->gradient));
      result.loss.sum += out->loss.sum;
      result.loss.tokens += out->loss.tokens;
    }
    auto host = runtime->NewHostStage(StageId(s)).value();
    EXPECT_TRUE(sum.complete());
    EXPECT_TRUE(runtime->ToHost(StageId(s), *sum.Take(), host.get()).ok());
    for (size_t use = 0; use < spec.stages[s].uses.size(); ++use) {
      const uint64_t n = spec.tensors[spec.stages[s].uses[use].tensor.value()].elements();
      result.gradient[s].emplace_back(host->tensor(use), host->tensor(use) + n);
    }
  }
  return result;
}

// ---------------------------------------------------------------------------- by one graph

// The whole model as one autograd graph.
class Reference {
 public:
  Reference(const Case& c, const JobSpec& spec, const std::vector<std::vector<float>>& weights)
      : c_(c), spec_(spec) {
    for (const StageSpec& stage : spec.stages) {
      leaves_.emplace_back();
      for (const TensorUse& use : stage.uses) {
        const TensorSpec& tensor = spec.tensors[use.tensor.value()];
        std::vector<int64_t> shape = {tensor.rows, tensor.cols};
        if (tensor.rank == 1) shape = {tensor.cols};
        const std::vector<float>& values = weights[use.tensor.value()];
        leaves_.back().push_back(at::from_blob(const_cast<float*>(values.data()), shape)
                                     .clone()
                                     .set_requires_grad(true));
      }
    }
  }

  StepResult Run(const MicroBatch& batch) {
    const at::AutoGradMode with_grad(true);
    const Tensor tokens = at::tensor(std::vector<int64_t>(batch.tokens.begin(), batch.tokens.end()))
                              .view({batch.samples, batch.seq_len});
    const Tensor positions = at::ones({batch.seq_len}, at::kLong).cumsum(0) - 1;
    Tensor x = at::embedding(leaves_[0][0], tokens) + at::embedding(leaves_[0][1], positions);
    x = Dropout(batch, 0, 0, c_.embd_pdrop, x);
    const size_t last = leaves_.size() - 1;
    for (size_t s = 1; s < last; ++s) x = Block(batch, s, x);

    const std::vector<Tensor>& head = leaves_[last];
    const Tensor h = at::layer_norm(x, {c_.width}, head[0], head[1]).view({-1, c_.width});
    const Tensor labels =
        at::tensor(std::vector<int64_t>(batch.labels.begin(), batch.labels.end()));
    StepResult result;
    std::vector<Tensor> roots, outputs;  // one leaf of the output matrix per loss block
    for (int64_t first = 0; first < h.size(0); first += c_.loss_block) {
      const int64_t n = std::min<int64_t>(c_.loss_block, h.size(0) - first);
      outputs.push_back(head[2].detach().clone().set_requires_grad(true));
      const Tensor scores = at::matmul(h.narrow(0, first, n), outputs.back().t());
      const Tensor target = labels.narrow(0, first, n);
      roots.push_back(at::cross_entropy_loss(scores, target, {}, at::Reduction::Sum, kIgnoreLabel,
                                             c_.smoothing));
      const Tensor each = at::cross_entropy_loss(scores.detach(), target, {}, at::Reduction::None,
                                                 kIgnoreLabel, c_.smoothing);
      for (int64_t i = 0; i < n; ++i) {
        if (target[i].item<int64_t>() == kIgnoreLabel) continue;
        result.loss.sum += static_cast<double>(each[i].item<float>());
        ++result.loss.tokens;
      }
    }
    Collect(roots, outputs, &result);
    return result;
  }

 private:
  Tensor Dropout(const MicroBatch& batch, size_t stage, uint16_t site, double p, const Tensor& x) {
    if (p == 0) return x;
    RngKey key;
    key.seed = spec_.training.seed;
    key.step = batch.step.value();
    key.micro_batch = batch.index;
    key.stage = static_cast<uint16_t>(stage);
    key.site = site;
    std::vector<float> mask(x.numel());
    FillDropoutMask(key, p, absl::MakeSpan(mask));
    return x * at::from_blob(mask.data(), x.sizes()).clone();
  }

  Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(1);
    return at::addmm(bias, x.reshape({-1, x.size(-1)}), weight).view(shape);
  }

  Tensor Block(const MicroBatch& batch, size_t s, const Tensor& x) {
    const std::vector<Tensor>& w = leaves_[s];
    const int64_t b = batch.samples, t = batch.seq_len, d = c_.width / c_.heads;
    const Tensor qkv = Linear(at::layer_norm(x, {c_.width}, w[0], w[1]), w[2], w[3]);
    std::vector<Tensor> thirds = qkv.split(c_.width, 2);
    for (Tensor& third : thirds) third = third.view({b, t, c_.heads, d}).transpose(1, 2);
    Tensor a;
    if (c_.attn_pdrop == 0) {
      a = at::scaled_dot_product_attention(thirds[0], thirds[1], thirds[2], {}, 0.0, true);
    } else {
      const Tensor later = at::ones({t, t}, at::kBool).triu(1);
      Tensor scores = at::matmul(thirds[0], thirds[1].transpose(-1, -2)) *
                      (1.0 / std::sqrt(static_cast<double>(d)));
      scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
      a = at::matmul(Dropout(batch, s, 0, c_.attn_pdrop, at::softmax(scores, -1)), thirds[2]);
    }
    a = Linear(a.transpose(1, 2).reshape({b, t, c_.width}), w[4], w[5]);
    const Tensor x2 = Dropout(batch, s, 1, c_.resid_pdrop, a) + x;
    Tensor m = Linear(at::layer_norm(x2, {c_.width}, w[6], w[7]), w[8], w[9]);
    m = Linear(at::gelu(m, "tanh"), w[10], w[11]);
    return x2 + Dropout(batch, s, 2, c_.resid_pdrop, m);
  }

  void Collect(const std::vector<Tensor>& roots, const std::vector<Tensor>& outputs,
               StepResult* result) {
    std::vector<Tensor> inputs;
    for (const auto& stage : leaves_) inputs.insert(inputs.end(), stage.begin(), stage.end());
    inputs.pop_back();  // the output matrix has a leaf per block
    inputs.insert(inputs.end(), outputs.begin(), outputs.end());
    const Tensor scale = at::ones({}).mul(std::ldexp(1.0, -c_.loss_scale_log2));
    std::vector<Tensor> grads =
        torch::autograd::grad(roots, inputs, std::vector<Tensor>(roots.size(), scale));
    Tensor output_grad = grads[grads.size() - outputs.size()];
    for (size_t i = 1; i < outputs.size(); ++i) {
      output_grad = output_grad + grads[grads.size() - outputs.size() + i];
    }
    grads.resize(grads.size() - outputs.size());
    grads.push_back(output_grad);
    size_t next = 0;
    for (const auto& stage : leaves_) {
      result->gradient.emplace_back();
      for (size_t use = 0; use < stage.size(); ++use) {
        const Tensor g = grads[next++].contiguous();
        result->gradient.back().emplace_back(g.data_ptr<float>(), g.data_ptr<float>() + g.numel());
      }
    }
  }

  const Case& c_;
  const JobSpec& spec_;
  std::vector<std::vector<Tensor>> leaves_;
};

std::vector<float> Plus(std::vector<float> left, const std::vector<float>& right) {
  for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
  return left;
}

// Runs all micro-batches and sums along the canonical tree.
StepResult RunReference(const Case& c, const JobSpec& spec,
                        const std::vector<std::vector<float>>& weights) {
  Reference reference(c, spec, weights);
  std::vector<StepResult> all;
  for (uint32_t u = 0; u < c.micro_batches; ++u) all.push_back(reference.Run(MakeBatch(c, u)));
  StepResult total = all[0];
  for (uint32_t u = 1; u < c.micro_batches; ++u) {
    total.loss.sum += all[u].loss.sum;
    total.loss.tokens += all[u].loss.tokens;
  }
  for (size_t s = 0; s < total.gradient.size(); ++s) {
    for (size_t use = 0; use < total.gradient[s].size(); ++use) {
      auto add = [](std::vector<float> l, std::vector<float> r) { return Plus(std::move(l), r); };
      TreeAccumulator<std::vector<float>, decltype(add)> sum(c.micro_batches, add);
      for (uint32_t u = 0; u < c.micro_batches; ++u) sum.Insert({u, 1}, all[u].gradient[s][use]);
      total.gradient[s][use] = sum.Take();
    }
  }
  return total;
}

class Gpt2Test : public testing::TestWithParam<Case> {};

TEST_P(Gpt2Test, GivesTheBitsOfOneAutogradGraph) {
  const Case& c = GetParam();
  const JobSpec spec = MakeSpec(c);
  const auto weights = MakeWeights(spec);
  MemoryAccount account;
  auto runtime = NewTorchRuntime(spec, NewModelStage, RuntimeOptions{"cpu", "host", 2}, &account);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const StepResult expected = RunReference(c, spec, weights);
  for (const bool descending : {false, true}) {
    const StepResult got = RunStages(c, spec, weights, runtime->get(), descending);
    EXPECT_EQ(got.loss.tokens, expected.loss.tokens);
    if (descending) {
      EXPECT_NEAR(got.loss.sum, expected.loss.sum, 1e-9 * expected.loss.sum);
    } else {
      EXPECT_EQ(got.loss.sum, expected.loss.sum);
    }
    for (size_t s = 0; s < spec.stages.size(); ++s) {
      for (size_t use = 0; use < spec.stages[s].uses.size(); ++use) {
        EXPECT_TRUE(SameBits(got.gradient[s][use], expected.gradient[s][use]))
            << "gradient of " << spec.tensors[spec.stages[s].uses[use].tensor.value()].name
            << " by stage " << spec.stages[s].name << (descending ? ", descending" : "")
            << ": first element " << got.gradient[s][use][0] << ", expected "
            << expected.gradient[s][use][0];
      }
    }
  }
  EXPECT_EQ(account.live_bytes(), 0u);
  EXPECT_GT(account.peak_bytes(MemoryKind::kStash), 0u);
}

// Returns ||found - expected|| / ||expected||.
double RelativeError(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    error += (found[i] - e) * (found[i] - e);
    norm += e * e;
  }
  return std::sqrt(error / norm);
}

bool IsBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits & 0xffff) == 0;
}

// The step in 16 bits stays near the FP32 step of the same weights. The gradient of a matrix is not
// rounded to 16 bits.
TEST_P(Gpt2Test, StaysNearFp32In16Bits) {
  const Case& c = GetParam();
  JobSpec spec = MakeSpec(c);
  auto weights = MakeWeights(spec);
  for (std::vector<float>& values : weights) {
    for (float& v : values) v = static_cast<float>(static_cast<at::BFloat16>(v));
  }
  const StepResult expected = RunReference(c, spec, weights);
  for (const Precision precision : {Precision::kBf16, Precision::kCmp}) {
    spec.training.precision = precision;
    const double bound = precision == Precision::kBf16 ? 0.03 : 0.004;
    auto runtime = NewTorchRuntime(spec, NewModelStage, RuntimeOptions{"cpu", "host", 2}, nullptr);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const StepResult got = RunStages(c, spec, weights, runtime->get(), /*descending=*/true);
    EXPECT_NEAR(got.loss.sum, expected.loss.sum, bound / 10 * expected.loss.sum);
    for (size_t s = 0; s < spec.stages.size(); ++s) {
      for (size_t use = 0; use < spec.stages[s].uses.size(); ++use) {
        EXPECT_LT(RelativeError(got.gradient[s][use], expected.gradient[s][use]), bound)
            << "gradient of " << spec.tensors[spec.stages[s].uses[use].tensor.value()].name
            << " by stage " << spec.stages[s].name << " in " << NameOf(precision);
      }
    }
    const std::vector<float>& matrix = got.gradient[1][2];
    EXPECT_FALSE(std::all_of(matrix.begin(), matrix.end(), IsBf16));
  }
}

const Case kCases[] = {
    // name, layers, heads, width, vocab, seq, samples, g, block, tied, resid, embd, attn, k, padded
    {"Tied", 2, 2, 32, 61, 12, 3, 3, 16, true, 0, 0, 0, 0, false},
    {"Untied", 2, 2, 32, 61, 12, 3, 3, 16, false, 0, 0, 0, 0, false},
    {"Dropout", 2, 4, 64, 67, 16, 2, 2, 1024, true, 0.1, 0.2, 0.3, 0, false},
    {"DropoutOutsideAttention", 1, 4, 64, 67, 16, 2, 4, 32, false, 0.1, 0.1, 0, 0, false},
    {"LossScaleAndPadding", 1, 2, 32, 61, 12, 3, 1, 16, true, 0, 0, 0, 7, true},
    {"Smoothing", 1, 2, 32, 61, 12, 3, 2, 16, true, 0, 0, 0, 3, true, 0.1},
    {"Wide", 2, 8, 256, 256, 96, 4, 2, 100, true, 0.1, 0, 0, 0, false},
};
INSTANTIATE_TEST_SUITE_P(All, Gpt2Test, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace eps
