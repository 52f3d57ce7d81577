#include "worker/models/gradient_sums.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/mm.h"
#include "base/job/job_spec.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
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

TEST(GradientSums, StagesOfProgramsAddToThem) {
  ExpectSums(JobOf(/*program=*/true, /*tied=*/true, Precision::kFp32));
  ExpectSums(JobOf(/*program=*/true, /*tied=*/false, Precision::kFp32));
}

}  // namespace
}  // namespace eps
