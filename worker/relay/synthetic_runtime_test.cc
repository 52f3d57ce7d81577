#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/job/initial_values.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "worker/relay/stage_program.h"
#include "worker/relay/synthetic_runtime.h"

namespace eps {
namespace {

JobSpec SpecOf(int layers, bool tied) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = layers;
  spec.model.synthetic.tied = tied;
  spec.model.synthetic.n_embd = 32;
  spec.groups.clear();
  spec.tensors.clear();
  spec.stages.clear();
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

// The loss and the gradients of a pass.
struct Result {
  std::vector<std::vector<float>> gradients;  // by stage and use
  LossSum loss;
};

class SyntheticRuntimeTest : public testing::Test {
 protected:
  void Start(int layers, bool tied) {
    spec_ = SpecOf(layers, tied);
    runtime_ = NewSyntheticRuntime(spec_, &account_);
    weights_.clear();
    for (uint32_t t = 0; t < spec_.tensors.size(); ++t) {
      weights_.emplace_back(spec_.tensors[t].elements());
      FillInitialValues(spec_, TensorId(t), 0, absl::MakeSpan(weights_.back()));
    }
  }

  Result Run(uint64_t step, uint32_t index, int loss_scale_log2 = 0) {
    MicroBatch batch;
    batch.step = Step(step);
    batch.index = index;
    batch.samples = spec_.training.micro_batch_size;
    batch.seq_len = spec_.training.seq_len;
    const uint32_t n = static_cast<uint32_t>(spec_.stages.size());
    std::vector<std::shared_ptr<const StageWeights>> loaded;
    for (uint32_t s = 0; s < n; ++s) loaded.push_back(Load(StageId(s)));
    std::vector<ActivationPtr> inputs(n);
    for (uint32_t s = 0; s + 1 < n; ++s) {
      inputs[s + 1] = *runtime_->program(StageId(s)).Forward(*loaded[s], batch, inputs[s]);
    }
    Result all;
    all.gradients.resize(2 * n);
    ActivationPtr grad;
    for (uint32_t s = n; s-- > 0;) {
      auto result = *runtime_->program(StageId(s))
                         .Backward(*loaded[s], batch, inputs[s], grad, loss_scale_log2, nullptr);
      EXPECT_EQ(result.grad_in == nullptr, s == 0);
      grad = result.grad_in;
      if (s + 1 == n) all.loss = result.loss;
      auto host = runtime_->NewHostStage(StageId(s)).value();
      EXPECT_TRUE(runtime_->ToHost(StageId(s), *result.gradient, host.get()).ok());
      for (size_t u = 0; u < 2; ++u) {
        const uint64_t size = spec_.tensors[spec_.stages[s].uses[u].tensor.value()].elements();
        all.gradients[2 * s + u].assign(host->tensor(u), host->tensor(u) + size);
      }
    }
    return all;
  }

  std::shared_ptr<const StageWeights> Load(StageId stage) {
    std::shared_ptr<HostStage> host = runtime_->NewHostStage(stage).value();
    for (size_t u = 0; u < 2; ++u) {
      const auto& tensor = weights_[spec_.stages[stage.value()].uses[u].tensor.value()];
      std::copy(tensor.begin(), tensor.end(), host->tensor(u));
    }
    return runtime_->Load(stage, std::move(host));
  }

  MemoryAccount account_;
  JobSpec spec_;
  std::unique_ptr<StageRuntime> runtime_;
  std::vector<std::vector<float>> weights_;  // by tensor
};

TEST_F(SyntheticRuntimeTest, GivesTheDerivativeOfItsLoss) {
  for (const bool tied : {false, true}) {
    Start(3, tied);
    for (auto& tensor : weights_) {
      for (float& weight : tensor) weight *= 40.0f;  // where softsign is clearly nonlinear
    }
    const Result at = Run(1, 0);
    EXPECT_GT(at.loss.sum, 0);
    EXPECT_EQ(at.loss.tokens, uint64_t{2} * 32);
    for (uint32_t t = 0; t < spec_.tensors.size(); ++t) {
      for (const size_t i : {size_t{0}, weights_[t].size() / 2, weights_[t].size() - 1}) {
        double expected = 0;  // summed over all uses of the tensor
        for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
          for (size_t u = 0; u < 2; ++u) {
            if (spec_.stages[s].uses[u].tensor.value() == t) expected += at.gradients[2 * s + u][i];
          }
        }
        constexpr float kStep = 0.004f;  // small: the slope of softsign has a kink at 0
        const float value = weights_[t][i];
        weights_[t][i] = value + kStep;
        const double above = Run(1, 0).loss.sum;
        weights_[t][i] = value - kStep;
        const double below = Run(1, 0).loss.sum;
        weights_[t][i] = value;
        EXPECT_NEAR((above - below) / (2.0 * kStep), expected, 1e-3 + 0.02 * std::fabs(expected))
            << spec_.tensors[t].name << " element " << i << (tied ? " tied" : "");
      }
    }
  }
}

TEST_F(SyntheticRuntimeTest, GradientsDependOnWeightsStepMicroBatch) {
  Start(3, true);
  const Result at = Run(1, 0);
  EXPECT_EQ(Run(1, 0).gradients, at.gradients);
  const auto expect_all_differ = [&](const Result& other, const char* what) {
    for (size_t g = 0; g < at.gradients.size(); ++g) {
      EXPECT_NE(other.gradients[g], at.gradients[g]) << what << ", gradient " << g;
    }
  };
  expect_all_differ(Run(2, 0), "another step");
  expect_all_differ(Run(1, 1), "another micro-batch");
  for (auto& weight : weights_.back()) weight += 0.25f;
  expect_all_differ(Run(1, 0), "another bias in the last stage");
}

TEST_F(SyntheticRuntimeTest, ScalesGradientsButNotTheLoss) {
  Start(2, false);
  const Result at = Run(1, 0);
  for (const int k : {7, -3}) {
    const Result scaled = Run(1, 0, k);
    EXPECT_EQ(scaled.loss.sum, at.loss.sum);
    for (size_t g = 0; g < at.gradients.size(); ++g) {
      for (size_t i = 0; i < at.gradients[g].size(); ++i) {
        ASSERT_EQ(scaled.gradients[g][i], std::ldexp(at.gradients[g][i], -k));
      }
    }
  }
}

TEST_F(SyntheticRuntimeTest, KeepsStashedValuesAndChargesThem) {
  Start(2, false);
  MicroBatch batch;
  batch.step = Step(1);
  batch.samples = 2;
  batch.seq_len = 32;
  ActivationPtr out = *runtime_->program(StageId(0)).Forward(*Load(StageId(0)), batch, nullptr);
  const uint64_t bytes = out->bytes();
  EXPECT_EQ(runtime_->device_memory().live_bytes, bytes);
  ActivationPtr stashed = *runtime_->Stash(std::move(out));
  out = nullptr;
  EXPECT_EQ(runtime_->device_memory().live_bytes, 0u);
  EXPECT_EQ(account_.live_bytes(MemoryKind::kStash), bytes);
  const ActivationPtr back = *runtime_->Unstash(stashed);
  stashed = nullptr;
  EXPECT_EQ(runtime_->device_memory().live_bytes, bytes);
  EXPECT_EQ(account_.live_bytes(MemoryKind::kStash), 0u);
  const auto first =
      runtime_->program(StageId(1)).Backward(*Load(StageId(1)), batch, back, nullptr, 0, nullptr);
  ASSERT_TRUE(first.ok());
  EXPECT_GT(runtime_->device_memory().peak_bytes, bytes);
}

}  // namespace
}  // namespace eps
