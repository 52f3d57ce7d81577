#include "worker/models/gradient_sums.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/native_layer_norm.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "base/job/job_spec.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/loss_head.h"
#include "worker/models/program_stage.h"
#include "worker/models/program_substitutions.h"
#include "worker/models/testing/stage_runs.h"
#include "worker/models/testing/values.h"

namespace eps {
namespace {

using at::Tensor;

TEST(GradientSums, TheFirstTermIsTheSum) {
  Tensor sum;
  AddTerm(Values({2, 3}, 1, 1.0f), &sum);
  EXPECT_TRUE(sum.equal(Values({2, 3}, 1, 1.0f)));
  const void* const memory = sum.const_data_ptr();
  AddTerm(Values({2, 3}, 2, 1.0f), &sum);
  EXPECT_TRUE(sum.equal(Values({2, 3}, 1, 1.0f) + Values({2, 3}, 2, 1.0f)));
  EXPECT_EQ(sum.const_data_ptr(), memory);
}

TEST(GradientSums, ProductsOf16BitsAreAddedInFp32) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor a = Values({3, 40}, 1, 1.0f).to(type), b = Values({40, 5}, 2, 1.0f).to(type);
    const Tensor product = at::mm(a.to(at::kFloat), b.to(at::kFloat));
    const Tensor before = Values({3, 5}, 3, 1.0f);
    Tensor sum, within;
    AddProduct(a, b, &sum);
    AddWithinProduct(a, b, &within);
    EXPECT_TRUE(sum.equal(product)) << type;
    EXPECT_TRUE(within.equal(product)) << type;
    sum = before.clone();
    within = before.clone();
    AddProduct(a, b, &sum);
    AddWithinProduct(a, b, &within);
    EXPECT_TRUE(sum.equal(before + product)) << type;
    EXPECT_TRUE(within.allclose(before + product, 1e-6, 1e-6)) << type;
    EXPECT_EQ(sum.scalar_type(), at::kFloat);
  }
}

JobSpec JobOf(bool program, bool tied, Precision precision) {
  ModelSpec model;
  model.gpt2.n_layer = 2;
  model.gpt2.n_head = 2;
  model.gpt2.n_embd = 24;
  model.gpt2.n_positions = 16;
  model.gpt2.vocab_size = 61;
  model.gpt2.tie_word_embeddings = tied;
  if (program) model = ModelOf(Gpt2Program(model.gpt2, /*fused_gelu=*/true));
  JobSpec spec = SpecOf(model, /*loss_block=*/7);
  spec.training.precision = precision;
  return spec;
}

// Stage by stage, a gradient added to a sum has the bits of the two added afterwards.
void ExpectSums(const JobSpec& spec) {
  std::vector<StageTensors> weights = WeightsOf(spec);
  const at::ScalarType type = StagesOf(spec)[0]->type();
  for (StageTensors& stage : weights) {
    for (Tensor& weight : stage) weight = weight.to(type);
  }
  MicroBatch batch = BatchOf(3, 11, 61);
  const Outcome first = RunStages(spec, weights, weights, batch);
  batch.index = 2;
  for (int32_t& token : batch.tokens) token = (token + 11) % 61;
  const Outcome second = RunStages(spec, weights, weights, batch);
  std::vector<StageTensors> sums = first.gradients;
  for (StageTensors& stage : sums) {
    for (Tensor& sum : stage) sum = sum.clone();
  }
  const Outcome both = RunStages(spec, weights, weights, batch, std::move(sums));
  for (size_t s = 0; s < spec.stages.size(); ++s) {
    for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
      const Tensor expected = first.gradients[s][u] + second.gradients[s][u];
      EXPECT_TRUE(both.gradients[s][u].equal(expected)) << s << " " << u;
      EXPECT_FALSE(expected.equal(first.gradients[s][u])) << s << " " << u;
    }
  }
}

TEST(GradientSums, StagesOfGpt2AddToThem) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kCmp}) {
    ExpectSums(JobOf(/*program=*/false, /*tied=*/true, precision));
    ExpectSums(JobOf(/*program=*/false, /*tied=*/false, precision));
  }
}

// Returns the stages of a program's job as they compute on a device.
std::vector<std::unique_ptr<TorchStage>> StagesWithin(const JobSpec& spec) {
  std::vector<std::unique_ptr<TorchStage>> stages;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    auto stage = NewProgramStage(spec, StageId(s), [](const Tensor&) { return true; });
    EXPECT_TRUE(stage.ok()) << stage.status();
    stages.push_back(*std::move(stage));
  }
  return stages;
}

std::vector<StageTensors> CopiesOf(const std::vector<StageTensors>& sums) {
  std::vector<StageTensors> copies = sums;
  for (StageTensors& stage : copies) {
    for (Tensor& sum : stage) sum = sum.clone();
  }
  return copies;
}

TEST(GradientSums, ProductsOfProgramsAddToThem) {
  const JobSpec spec = JobOf(/*program=*/true, /*tied=*/false, Precision::kFp32);
  const std::vector<StageTensors> weights = WeightsOf(spec);
  MicroBatch batch = BatchOf(3, 11, 61);
  const auto stages = StagesWithin(spec);
  const Outcome separate = RunStages(spec, weights, weights, batch);
  const Outcome first = RunStages(stages, weights, weights, batch);
  batch.index = 2;
  const Outcome two = RunStages(spec, weights, weights, batch, CopiesOf(separate.gradients));
  std::vector<StageTensors> sums = CopiesOf(first.gradients);
  const void* const matrix = sums[1][2].const_data_ptr();
  const Outcome both = RunStages(stages, weights, weights, batch, std::move(sums));
  EXPECT_EQ(both.gradients[1][2].const_data_ptr(), matrix);  // nothing is copied
  for (size_t s = 0; s < spec.stages.size(); ++s) {
    for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
      const Tensor& sum = both.gradients[s][u];
      EXPECT_TRUE(first.gradients[s][u].equal(separate.gradients[s][u])) << s << " " << u;
      EXPECT_TRUE(sum.allclose(two.gradients[s][u], 1e-5, 1e-6)) << s << " " << u;
      EXPECT_TRUE(sum.is_contiguous() && sum.sizes() == weights[s][u].sizes()) << s << " " << u;
    }
  }
}

// A job whose second stage multiplies twice by the same matrix.
JobSpec JobOfTwoProducts() {
  nlohmann::json root = nlohmann::json::parse(LlamaProgram(LlamaShape()));
  root["programs"][1]["calls"] = nlohmann::json::parse(
      R"([["aten::linear",[{"slot":0},{"slot":1}]],["aten::linear",[{"slot":12},{"slot":1}]]])");
  root["programs"][1]["output"] = 13;
  return SpecOf(ModelOf(root.dump()), /*loss_block=*/1024);
}

TEST(GradientSums, ProductsAreAddedWithinTheProduct) {
  const JobSpec spec = JobOfTwoProducts();
  const StageTensors weights = WeightsOf(spec)[1];
  const auto stages = StagesWithin(spec);
  const MicroBatch batch = BatchOf(2, 3, 256);
  const Tensor x = Values({2, 3, 32}, 1, 2.0f), dy = Values({2, 3, 32}, 2, 2.0f);
  const Tensor rows = x.view({-1, 32}), drows = dy.view({-1, 32}), &w = weights[0];
  const at::NoGradGuard no_grad;
  const Tensor hidden = at::linear(rows, w), dhidden = at::mm(drows, w);
  for (const bool keeps : {false, true}) {
    Tensor expected = at::mm(drows.t(), hidden).addmm_(dhidden.t(), rows);
    StageTensors sums;
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      BackwardInputs inputs = {x, dy, 0, std::move(sums)};
      if (keeps) stages[1]->ForwardAndKeep(weights, batch, x, &inputs.kept);
      sums = stages[1]->Backward(weights, weights, batch, std::move(inputs)).gradient;
      ASSERT_EQ(sums.size(), weights.size());
      EXPECT_TRUE(sums[0].equal(expected)) << keeps << " " << micro_batch;
      EXPECT_TRUE(sums[1].equal(at::zeros(weights[1].sizes())));  // of a matrix without products
      expected.addmm_(drows.t(), hidden).addmm_(dhidden.t(), rows);
    }
  }
}

// Unlike those of GPT-2, which a CPU computes in FP32.
TEST(GradientSums, CpusRoundProductsOfProgramsTo16Bits) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Tensor x = Values({7, 4}, 1, 2.0f).to(type), dy = Values({7, 5}, 2, 2.0f).to(type);
    const Tensor w = Values({5, 4}, 3).to(type).requires_grad_(true);
    const Tensor product = at::mm(dy.t(), x).to(at::kFloat);
    Tensor sum;
    for (const Tensor& expected : {product, product + product}) {
      const at::AutoGradMode with_grad(true);
      const Tensor y = ProductWithWeight(x, {w, w.detach(), &sum, /*out_in=*/true}, std::nullopt);
      torch::autograd::grad({y}, {w}, {dy}, /*retain_graph=*/false, /*create_graph=*/false,
                            /*allow_unused=*/true);
      EXPECT_TRUE(sum.equal(expected)) << type;
      EXPECT_EQ(sum.scalar_type(), at::kFloat);
    }
  }
}

TEST(GradientSums, BlocksOfHeadsAddWithinTheProduct) {
  const JobSpec spec = JobOf(/*program=*/true, /*tied=*/false, Precision::kFp32);
  const StageTensors weights = WeightsOf(spec)[3];
  const auto stages = StagesWithin(spec);
  const MicroBatch batch = BatchOf(2, 5, 61);
  const Tensor x = Values({2, 5, 24}, 1, 2.0f);
  const at::NoGradGuard no_grad;
  const StageTensors first = stages[3]->Backward(weights, weights, batch, {x, {}, 0}).gradient;
  StageTensors sums = CopiesOf({first})[0];
  sums[2].mul_(1024);  // so that an addition of the blocks before the sum has other bits
  Tensor expected = sums[2].clone();
  const Tensor h = std::get<0>(at::native_layer_norm(x.view({-1, 24}), {24}, weights[0], weights[1],
                                                     spec.model.gpt2.layer_norm_epsilon));
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>(0, 7), {7, 3}}) {
    const Tensor labels = at::tensor(at::ArrayRef<int32_t>(batch.labels), at::kLong);
    const Tensor rows = h.narrow(0, begin, count);
    const Tensor scores = CrossEntropyGradient(
        at::linear(rows, weights[2]), labels.narrow(0, begin, count), 1.0, 0.0, at::empty({count}));
    expected.addmm_(scores.t(), rows);
  }
  const Tensor found =
      stages[3]->Backward(weights, weights, batch, {x, {}, 0, std::move(sums)}).gradient[2];
  EXPECT_TRUE(found.equal(expected));
}

TEST(GradientSums, StagesOfProgramsAddToThem) {
  ExpectSums(JobOf(/*program=*/true, /*tied=*/true, Precision::kFp32));
  ExpectSums(JobOf(/*program=*/true, /*tied=*/false, Precision::kFp32));
}

}  // namespace
}  // namespace eps
