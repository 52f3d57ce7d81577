// Computes stages of BF16 and FP16 programs, and holds the sums of their gradients against FP64.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/full.h"
#include "ATen/ops/index.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"
#include "worker/models/program_substitutions.h"
#include "worker/models/testing/values.h"

namespace eps {
namespace {

using at::Tensor;
using nlohmann::json;

constexpr int64_t kRows = 4096;
constexpr int kWidth = 8;
constexpr int kVocabulary = 61;
constexpr int kId = 3;
constexpr double kBound = 0.01;  // relative

// By the type in which a program computes.
class SixteenBits : public testing::TestWithParam<at::ScalarType> {
 protected:
  static json Gpt2() {
    Gpt2Config c;
    c.n_layer = 1;
    c.n_head = 2;
    c.n_embd = kWidth;
    c.n_positions = kRows;
    c.vocab_size = kVocabulary;
    const char* const type = GetParam() == at::kBFloat16 ? "bfloat16" : "float16";
    return json::parse(Gpt2Program(c, /*fused_gelu=*/true, type));
  }
};

INSTANTIATE_TEST_SUITE_P(Types, SixteenBits, testing::Values(at::kBFloat16, at::kHalf));

// Replaces the calls of a stage; the last one gives its output.
void SetCalls(json* root, size_t stage, int first_slot, const char* calls) {
  json& program = (*root)["programs"][stage];
  program["calls"] = json::parse(calls);
  program["output"] = first_slot + static_cast<int>(program["calls"].size()) - 1;
}

// A stage of a program, with its weights in FP32 and as it computes with them.
struct Stage {
  explicit Stage(const json& root, uint32_t number, uint32_t loss_block = 1024) {
    spec.model = ModelOf(root.dump());
    spec.training.loss_block_tokens = loss_block;
    EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
    auto made = NewModelStage(spec, StageId(number));
    EXPECT_TRUE(made.ok()) << made.status();
    stage = *std::move(made);
    for (const TensorUse& use : spec.stages[number].uses) {
      const TensorSpec& t = spec.tensors[use.tensor.value()];
      std::vector<int64_t> shape = {t.rows, t.cols};
      if (t.rank == 1) shape = {t.cols};
      const auto seed = static_cast<uint32_t>(weights.size());
      weights.push_back(Values(shape, seed, 1.0f).to(at::kBFloat16).to(stage->type()));
    }
  }
  TorchBackward Backward(const MicroBatch& batch, const Tensor& in, const Tensor& grad_out) const {
    const at::NoGradGuard no_grad;
    return stage->Backward(weights, weights, batch, {in, grad_out});
  }

  JobSpec spec;
  std::unique_ptr<TorchStage> stage;
  StageTensors weights;
};

// Every token is the same one.
MicroBatch BatchOfOneId() {
  MicroBatch batch;
  batch.step = Step(1);
  batch.samples = 1;
  batch.seq_len = kRows;
  batch.tokens.assign(kRows, kId);
  batch.labels.assign(kRows, kId + 1);
  return batch;
}

void ExpectNear(const Tensor& found, const Tensor& fp64, const std::string& what) {
  ASSERT_EQ(found.scalar_type(), at::kFloat) << what;
  ASSERT_EQ(found.sizes(), fp64.sizes()) << what;
  const double error = found.to(at::kDouble).sub(fp64).norm().item<double>();
  EXPECT_LT(error, kBound * fp64.norm().item<double>()) << what;
}

TEST_P(SixteenBits, SumsLookupsOfOneIdInFp32) {
  const char* const lookups[] = {
      R"([["aten::embedding",[{"slot":0},{"slot":2}]]])",
      R"([["aten::index.Tensor",[{"slot":0},[{"slot":2}]]]])",
  };
  for (const char* const lookup : lookups) {
    json root = Gpt2();
    SetCalls(&root, 0, 4, lookup);
    const Stage stage(root, 0);
    const Tensor dy = Values({1, kRows, kWidth}, 7, 1.0f).mul(0.01).add(0.01).to(GetParam());
    const TorchBackward back = stage.Backward(BatchOfOneId(), Tensor(), dy);
    const Tensor expected = at::zeros({kVocabulary, kWidth}, at::kDouble);
    expected[kId].copy_(dy.to(at::kDouble).sum(1).squeeze(0));
    ExpectNear(back.gradient[0], expected, lookup);
    EXPECT_TRUE(back.gradient[1].equal(at::zeros({kRows, kWidth})));
  }
}

TEST_P(SixteenBits, SumsRowsOfANormInFp32) {
  json root = Gpt2();
  SetCalls(&root, 1, 13,
           R"([["aten::layer_norm",[{"slot":0},[8],{"slot":1},{"slot":2},1e-05,false]]])");
  const Stage stage(root, 1);
  const Tensor x = Values({1, kRows, kWidth}, 5, 1.0f).to(GetParam());
  // Larger where x is, so that the gradient of the weight does not cancel.
  const Tensor dy = Values({1, kRows, kWidth}, 7, 1.0f).add(x).mul(0.01).add(0.01).to(GetParam());
  const TorchBackward back = stage.Backward(BatchOfOneId(), x, dy);
  EXPECT_EQ(back.grad_in.scalar_type(), GetParam());
  const Tensor rows = x.to(at::kDouble).view({kRows, kWidth});
  const Tensor g = dy.to(at::kDouble).view({kRows, kWidth});
  const Tensor centred = rows.sub(rows.mean(1, /*keepdim=*/true));
  const Tensor rstd = centred.square().mean(1, /*keepdim=*/true).add(1e-5).rsqrt();
  const Tensor normed = centred.mul(rstd);
  ExpectNear(back.gradient[0], g.mul(normed).sum(0), "weight");
  ExpectNear(back.gradient[1], g.sum(0), "bias");
  const Tensor of_normed = g.mul(stage.weights[0].to(at::kDouble));
  const Tensor dx = of_normed.sub(of_normed.mean(1, /*keepdim=*/true))
                        .sub(normed.mul(of_normed.mul(normed).mean(1, /*keepdim=*/true)))
                        .mul(rstd);
  ExpectNear(back.grad_in.to(at::kFloat).view({kRows, kWidth}), dx, "input");
}

TEST_P(SixteenBits, HasTheForwardBitsOfItsOperators) {
  const Tensor x = Values({kRows, kWidth}, 5, 1.0f).to(GetParam()).requires_grad_(true);
  const Tensor weight = Values({kWidth}, 6, 1.0f).to(GetParam());
  const Tensor bias = Values({kWidth}, 7, 1.0f).to(GetParam());
  const Tensor ids = at::full({3, 4}, kId, at::kLong);
  const c10::List<std::optional<Tensor>> indices({ids});
  EXPECT_TRUE(HasNarrowSums(x));
  EXPECT_TRUE(LayerNormWithWideSums(x, {kWidth}, weight, bias, 1e-5)
                  .equal(at::layer_norm(x, {kWidth}, weight, bias, 1e-5)));
  EXPECT_TRUE(EmbeddingWithWideSums(x, ids, -1, false).equal(at::embedding(x, ids)));
  EXPECT_TRUE(IndexWithWideSums(x, indices).equal(at::index(x, indices)));
}

// In BF16, 256 + 0.5 = 256; in FP16, 2048 + 0.5 = 2048.
TEST_P(SixteenBits, AddsUsesOfAWeightInFp32) {
  json root = Gpt2();
  SetCalls(&root, 1, 13,
           R"([["aten::mul.Tensor",[{"slot":0},{"slot":1}]],["aten::mul.Tensor",[{"slot":1},0.5]],)"
           R"(["aten::add.Tensor",[{"slot":13},{"slot":14}]]])");
  const Stage stage(root, 1);
  MicroBatch batch = BatchOfOneId();
  batch.seq_len = 1;
  batch.tokens.resize(1);
  const auto type = at::TensorOptions().dtype(GetParam());
  const double large = GetParam() == at::kBFloat16 ? 256.0 : 2048.0;
  const TorchBackward back =
      stage.Backward(batch, at::full({1, 1, kWidth}, large, type), at::ones({1, 1, kWidth}, type));
  EXPECT_TRUE(back.gradient[0].equal(at::full({kWidth}, large + 0.5))) << back.gradient[0];
}

// The gradients of 256 blocks: in 16 bits their sum would stop growing.
TEST_P(SixteenBits, AddsBlocksOfTheHeadInFp32) {
  json fp32 = Gpt2();
  fp32["dtype"] = "float32";
  const Stage head(Gpt2(), 2, /*loss_block=*/16);
  const Stage exact(fp32, 2, /*loss_block=*/kRows);
  const Tensor x =
      Values({1, kRows, kWidth}, 4, 1.0f).mul(0.1).add(Values({kWidth}, 9, 1.0f)).to(GetParam());
  const TorchBackward found = head.Backward(BatchOfOneId(), x, Tensor());
  const TorchBackward expected = exact.Backward(BatchOfOneId(), x.to(at::kFloat), Tensor());
  EXPECT_EQ(found.label_log_p.scalar_type(), at::kFloat);
  EXPECT_TRUE(found.label_log_p.allclose(expected.label_log_p, 0.02, 0.02));
  for (size_t use = 0; use < 3; ++use) {
    ExpectNear(found.gradient[use], expected.gradient[use].to(at::kDouble), std::to_string(use));
  }
}

// As the relay gives them where StageSpec::backward_needs_weights is false.
TEST_P(SixteenBits, TakesGradientsWithoutValuesOfWeights) {
  json root = Gpt2();
  const Stage stage(root, 0);
  ASSERT_FALSE(stage.spec.stages[0].backward_needs_weights);
  StageTensors without;
  for (const Tensor& weight : stage.weights) without.push_back(weight.to(at::kMeta));
  const Tensor dy = Values({1, kRows, kWidth}, 7, 1.0f).to(GetParam());
  const TorchBackward expected = stage.Backward(BatchOfOneId(), Tensor(), dy);
  const at::NoGradGuard no_grad;
  const TorchBackward found =
      stage.stage->Backward(without, without, BatchOfOneId(), {Tensor(), dy});
  for (size_t use = 0; use < 2; ++use) {
    EXPECT_EQ(found.gradient[use].scalar_type(), at::kFloat);
    EXPECT_TRUE(found.gradient[use].equal(expected.gradient[use])) << use;
  }
}

// A mask of 1 / (1 - p) as BF16 would scale every value by 1.0016.
TEST_P(SixteenBits, RoundsOnceAfterDropout) {
  json root = Gpt2();
  SetCalls(&root, 1, 13, R"([["aten::dropout",[{"slot":0},0.1,true]]])");
  const Stage stage(root, 1);
  const Tensor x = at::full({1, kRows, kWidth}, 0.9f).to(GetParam());
  const at::NoGradGuard no_grad;
  const Tensor y = stage.stage->Forward(stage.weights, BatchOfOneId(), x);
  const Tensor kept = x.to(at::kFloat).div(1 - 0.1).to(GetParam());
  EXPECT_TRUE(y.eq(0).logical_or(y.eq(kept)).all().item<bool>());
  EXPECT_NEAR(y.eq(0).to(at::kFloat).mean().item<float>(), 0.1, 0.02);
}

}  // namespace
}  // namespace eps
