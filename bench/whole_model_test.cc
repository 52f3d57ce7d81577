// Checks that the peer of the step benchmark does the same work: it has the reference's losses and
// gradients, recomputation changes nothing, and its update is the project's own.

#include "bench/peers/whole_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/job/initial_values.h"
#include "base/job/layout/model_layout.h"
#include "base/job/schedule.h"
#include "gtest/gtest.h"
#include "optimizer/update_rule.h"
#include "verify/reference_models.h"

namespace eps {
namespace {

constexpr int kThreads = 2;

JobSpec MakeSpec(bool tied) {
  JobSpec spec;
  Gpt2Config& gpt2 = spec.model.gpt2;
  gpt2.n_layer = 3;
  gpt2.n_head = 2;
  gpt2.n_embd = 32;
  gpt2.n_positions = 16;
  gpt2.vocab_size = 48;
  gpt2.tie_word_embeddings = tied;
  spec.training.steps = 10;
  spec.training.micro_batch_size = 2;
  spec.training.seq_len = 16;
  spec.training.clip = Clip::kNone;
  spec.optimizer.lr = 1e-2;
  EXPECT_TRUE(BuildLayout(0.1, &spec).ok());
  return spec;
}

MicroBatch MakeBatch(const JobSpec& spec, uint32_t index) {
  MicroBatch batch;
  batch.step = Step(1);
  batch.index = index;
  batch.samples = spec.training.micro_batch_size;
  batch.seq_len = spec.training.seq_len;
  for (uint32_t i = 0; i < batch.samples * batch.seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((i * 7919 + index * 31) % 48));
    batch.labels.push_back(i % 5 == 0 ? kIgnoreLabel : static_cast<int32_t>((i * 13 + index) % 48));
  }
  return batch;
}

// The reference's gradient of each tensor, summed over its uses, for the spec's initial values.
struct Expected {
  std::vector<std::vector<float>> weights, gradients;
  double loss = 0;
};
Expected Reference(const JobSpec& spec, const MicroBatch& batch) {
  Expected expected;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    expected.weights.emplace_back(spec.tensors[t].elements());
    FillInitialValues(spec, TensorId(t), 0, absl::MakeSpan(expected.weights.back()));
    expected.gradients.emplace_back(spec.tensors[t].elements(), 0.0f);
  }
  StageInputs inputs;
  for (const StageSpec& stage : spec.stages) {
    inputs.emplace_back();
    for (const TensorUse& use : stage.uses) {
      inputs.back().push_back(expected.weights[use.tensor.value()].data());
    }
  }
  ReferenceOptions options;
  options.threads = kThreads;
  const auto model = NewReferenceModel(spec, options);
  EXPECT_TRUE(model.ok()) << model.status();
  const auto result = (*model)->Run(inputs, inputs, batch, 0);
  EXPECT_TRUE(result.ok()) << result.status();
  expected.loss = result->loss.sum;
  for (size_t s = 0; s < spec.stages.size(); ++s) {
    for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
      std::vector<float>& sum = expected.gradients[spec.stages[s].uses[u].tensor.value()];
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += result->gradient[s][u][i];
    }
  }
  return expected;
}

// The parameter is whether the model recomputes its blocks.
class WholeModelTest : public testing::TestWithParam<bool> {
 protected:
  WholeModelTest() { PrepareLibTorch(kThreads); }
};

TEST_P(WholeModelTest, LossAndGradientsMatchTheReference) {
  const JobSpec spec = MakeSpec(/*tied=*/GetParam());
  const MicroBatch batch = MakeBatch(spec, 0);
  const Expected expected = Reference(spec, batch);
  WholeModel model(spec, /*recompute=*/true);
  EXPECT_NEAR(model.AddMicroBatch(batch, 1) / expected.loss, 1.0, 1e-6);
  ASSERT_EQ(model.weights().size(), spec.tensors.size());
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    ASSERT_TRUE(model.weights()[t].grad().defined()) << spec.tensors[t].name;
    const float* const found = model.weights()[t].grad().const_data_ptr<float>();
    float largest = 0;
    float off = 0;
    for (size_t i = 0; i < expected.gradients[t].size(); ++i) {
      largest = std::max(largest, std::fabs(expected.gradients[t][i]));
      off = std::max(off, std::fabs(found[i] - expected.gradients[t][i]));
    }
    EXPECT_GT(largest, 0) << spec.tensors[t].name;
    EXPECT_LE(off, 1e-5f * largest + 1e-6f) << spec.tensors[t].name;
  }
}

TEST_P(WholeModelTest, RecomputationChangesNoBit) {
  const JobSpec spec = MakeSpec(/*tied=*/GetParam());
  WholeModel recomputed(spec, true);
  WholeModel kept(spec, false);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(recomputed.AddMicroBatch(MakeBatch(spec, i), 96),
              kept.AddMicroBatch(MakeBatch(spec, i), 96));
  }
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    EXPECT_TRUE(recomputed.weights()[t].grad().equal(kept.weights()[t].grad()))
        << spec.tensors[t].name;
  }
}

TEST_P(WholeModelTest, UpdatesLikeTheProjectsRule) {
  const JobSpec spec = MakeSpec(/*tied=*/GetParam());
  const MicroBatch batch = MakeBatch(spec, 0);
  Expected expected = Reference(spec, batch);
  WholeModel model(spec, true);
  model.AddMicroBatch(batch, 4);
  model.Update();
  const auto rule = NewUpdateRule(spec.optimizer);
  ASSERT_TRUE(rule.ok());
  StepScalars scalars;
  scalars.update = 1;
  scalars.lr = LearningRate(spec.schedule, spec.optimizer.lr, 1, spec.training.steps);
  scalars.bias_correction1 = 1.0 - spec.optimizer.beta1;
  scalars.bias_correction2 = 1.0 - spec.optimizer.beta2;
  scalars.grad_scale = 0.25f;
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    const TensorSpec& tensor = spec.tensors[t];
    GroupScalars group;
    group.weight_decay = spec.groups[tensor.group.value()].weight_decay;
    std::vector<float> first(tensor.elements()), second(tensor.elements());
    TileState state;
    state.weight = expected.weights[t].data();
    state.field[0] = first.data();
    state.field[1] = second.data();
    state.ld = tensor.cols;
    (*rule)->Run(tensor.rows, tensor.cols, expected.gradients[t].data(), tensor.cols, scalars,
                 group, state);
    const float* const found = model.weights()[t].const_data_ptr<float>();
    for (size_t i = 0; i < tensor.elements(); ++i) {
      // Where the gradient is only rounding noise, the first update is its sign and proves nothing.
      if (std::fabs(expected.gradients[t][i]) < 1e-3f) continue;
      ASSERT_NEAR(found[i], expected.weights[t][i], 2e-5) << tensor.name << " " << i;
    }
    EXPECT_FALSE(model.weights()[t].grad().defined());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WholeModelTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Tied" : "Untied";
                         });

// Returns how far the second update moves the first tensor if its gradient is divided by
// `second_scale`.
double SecondStep(Clip clip, uint64_t second_scale) {
  JobSpec spec = MakeSpec(true);
  spec.training.clip = clip;
  spec.training.max_grad_norm = 1e-3;
  // With betas of 0 and a large epsilon, an update is the clipped gradient times lr.
  spec.optimizer.beta1 = spec.optimizer.beta2 = 0;
  spec.optimizer.eps = 1.0;
  for (ParameterGroup& group : spec.groups) group.weight_decay = 0;
  WholeModel model(spec, true);
  model.AddMicroBatch(MakeBatch(spec, 0), 1);
  model.Update();
  const at::Tensor before = model.weights()[0].detach().clone();
  model.AddMicroBatch(MakeBatch(spec, 0), second_scale);
  model.Update();
  return model.weights()[0].detach().sub(before).abs().sum().item().toDouble();
}

TEST(WholeModelClipTest, LaggedAndExactUseTheirNorms) {
  PrepareLibTorch(kThreads);
  EXPECT_NEAR(SecondStep(Clip::kLagged, 1) / SecondStep(Clip::kLagged, 10), 10.0, 0.2);
  EXPECT_NEAR(SecondStep(Clip::kExact, 1) / SecondStep(Clip::kExact, 10), 1.0, 0.02);
  EXPECT_GT(SecondStep(Clip::kNone, 1), 10 * SecondStep(Clip::kExact, 1));
}

}  // namespace
}  // namespace eps
