// Runs stages of model programs: beside GPT-2 by hand, beside LibTorch's own loss, and with
// programs that a stranger could write.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"
#include "worker/models/program_tensors.h"
#include "worker/models/testing/stage_runs.h"

namespace eps {
namespace {

using at::Tensor;
using nlohmann::json;

// Expects equal bits, except for the names in `close`, which only have to be close.
void ExpectEqual(const JobSpec& spec, const Outcome& a, const Outcome& b,
                 const std::vector<std::string>& close = {}) {
  EXPECT_TRUE(a.label_log_p.equal(b.label_log_p));
  for (size_t s = 0; s < a.gradients.size(); ++s) {
    if (s > 0) {
      EXPECT_TRUE(a.activations[s].equal(b.activations[s])) << "into stage " << s;
    }
    ASSERT_EQ(a.gradients[s].size(), b.gradients[s].size());
    for (size_t u = 0; u < a.gradients[s].size(); ++u) {
      const std::string& name = spec.tensors[spec.stages[s].uses[u].tensor.value()].name;
      const Tensor& x = a.gradients[s][u];
      const Tensor& y = b.gradients[s][u];
      EXPECT_TRUE(x.is_contiguous() && x.sizes() == y.sizes()) << name;
      bool only_close = false;
      for (const std::string& part : close) only_close |= absl::StrContains(name, part);
      if (only_close) {
        EXPECT_TRUE(x.allclose(y, 1e-4, 1e-6)) << name;
      } else {
        EXPECT_TRUE(x.equal(y)) << name << " in stage " << s << " differs by "
                                << x.sub(y).abs().max().item<float>();
      }
    }
  }
}

Gpt2Config SmallGpt2(double pdrop) {
  Gpt2Config c;
  c.n_layer = 2;
  c.n_head = 2;
  c.n_embd = 24;
  c.n_positions = 16;
  c.vocab_size = 61;
  c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = pdrop;
  return c;
}

class Gpt2Programs : public testing::TestWithParam<double> {};

TEST_P(Gpt2Programs, HaveTheBitsOfTheirTwin) {
  for (const bool tied : {true, false}) {
    for (const uint32_t block : {1024u, 7u}) {
      ModelSpec by_hand;
      by_hand.gpt2 = SmallGpt2(GetParam());
      by_hand.gpt2.tie_word_embeddings = tied;
      const JobSpec spec = SpecOf(by_hand, block);
      const JobSpec program =
          SpecOf(ModelOf(Gpt2Program(by_hand.gpt2, /*fused_gelu=*/true)), block);
      const auto weights = WeightsOf(spec);
      MicroBatch batch = BatchOf(3, 11, 61);
      // With several blocks the norm's gradient is added block by block.
      const std::vector<std::string> close =
          block < 33 ? std::vector<std::string>{"ln_f"} : std::vector<std::string>();
      ExpectEqual(spec, RunStages(program, weights, weights, batch),
                  RunStages(spec, weights, weights, batch), close);
      batch.held_out = true;
      EXPECT_TRUE(RunStages(program, weights, weights, batch)
                      .label_log_p.equal(RunStages(spec, weights, weights, batch).label_log_p));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dropout, Gpt2Programs, testing::Values(0.0, 0.25),
                         [](const auto& info) { return info.param == 0 ? "Off" : "On"; });

TEST(Gpt2Program, WithHuggingFacesGeluIsClose) {
  ModelSpec by_hand;
  by_hand.gpt2 = SmallGpt2(0.25);
  const JobSpec spec = SpecOf(by_hand, 1024);
  const JobSpec program = SpecOf(ModelOf(Gpt2Program(by_hand.gpt2, /*fused_gelu=*/false)), 1024);
  const auto weights = WeightsOf(spec);
  const MicroBatch batch = BatchOf(3, 11, 61);
  const Outcome a = RunStages(program, weights, weights, batch);
  const Outcome b = RunStages(spec, weights, weights, batch);
  EXPECT_TRUE(a.label_log_p.allclose(b.label_log_p, 1e-5, 1e-6));
  for (size_t s = 0; s < a.gradients.size(); ++s) {
    for (size_t u = 0; u < a.gradients[s].size(); ++u) {
      EXPECT_TRUE(a.gradients[s][u].allclose(b.gradients[s][u], 1e-3, 1e-5)) << s << " " << u;
    }
  }
}

// The second copies matter for the gradients of inputs alone, as in GPT-2 by hand.
TEST(Gpt2Program, UsesSecondCopiesAsByHand) {
  ModelSpec by_hand;
  by_hand.gpt2 = SmallGpt2(0.25);
  const JobSpec spec = SpecOf(by_hand, 7);
  const JobSpec program = SpecOf(ModelOf(Gpt2Program(by_hand.gpt2, /*fused_gelu=*/true)), 7);
  const auto weights = WeightsOf(spec);
  std::vector<StageTensors> others = weights;
  for (size_t s = 0; s < others.size(); ++s) {
    for (size_t u = 0; u < others[s].size(); ++u) {
      const TensorUse& use = spec.stages[s].uses[u];
      if (use.forward_axis != use.backward_axis) others[s][u] = weights[s][u].mul(0.7).add(0.01);
    }
  }
  const MicroBatch batch = BatchOf(3, 11, 61);
  const Outcome ours = RunStages(program, weights, others, batch);
  ExpectEqual(spec, ours, RunStages(spec, weights, others, batch), {"ln_f"});
  const Outcome without = RunStages(program, weights, weights, batch);
  EXPECT_TRUE(ours.gradients[3][2].equal(without.gradients[3][2]));   // of the output matrix
  EXPECT_FALSE(ours.gradients[0][0].equal(without.gradients[0][0]));  // of the embedding
}

// A program of two stages: `first` of vocabulary and width, then `calls` as the head of `kind`.
ModelSpec HeadOf(const char* kind, bool rowwise, const std::string& calls, int classes) {
  json root = json::parse(LlamaProgram(LlamaShape()));
  json& program = root["programs"][2];
  program["calls"] = json::parse(calls);
  program["output"] = 2 + program["calls"].size();
  root["head"] = {{"kind", kind}, {"rowwise", rowwise}};
  json& matrix = root["tensors"].back();
  EXPECT_EQ(matrix["name"], "lm_head.weight");
  matrix["shape"] = {classes, 32};
  return ModelOf(root.dump());
}

TEST(ProgramHead, ComputesClassesAndRegressions) {
  // The first position of each sample decides.
  const std::string calls = R"([["aten::select.int",[{"slot":0},1,0]],)"
                            R"(["aten::mul.Tensor",[{"slot":3},{"slot":1}]],)"
                            R"(["aten::linear",[{"slot":4},{"slot":2}]]])";
  for (const bool regression : {false, true}) {
    const int classes = regression ? 1 : 5;
    const JobSpec spec =
        SpecOf(HeadOf(regression ? "mse" : "classes", false, calls, classes), 1024);
    const auto weights = WeightsOf(spec);
    MicroBatch batch = BatchOf(4, 6, 61);
    batch.labels = {0, 4, kIgnoreLabel, 2};
    if (regression) {
      batch.labels.clear();
      batch.targets = {0.5f, -1.0f, 2.0f, 0.0f};
    }
    const auto head = StagesOf(spec).back().release();
    const std::unique_ptr<TorchStage> owner(head);
    const Tensor x = Values({4, 6, 32}, 9, 3.0f);
    TorchBackward ours;
    Tensor log_p, predicted, predicted_of_zeros;
    {
      const at::NoGradGuard no_grad;
      ours = head->Backward(weights.back(), weights.back(), batch, {x, Tensor(), 0});
      log_p = head->LabelLogP(weights.back(), batch, x, &predicted);
      EXPECT_TRUE(head->LabelLogP(weights.back(), batch, x, nullptr).equal(log_p));
      head->LabelLogP(weights.back(), batch, at::zeros({4, 6, 32}), &predicted_of_zeros);
    }
    EXPECT_TRUE(log_p.equal(ours.label_log_p));
    const Tensor leaf = x.clone().requires_grad_(true);
    const Tensor w = weights.back()[1].clone().requires_grad_(true);
    const Tensor scores = at::linear(leaf.select(1, 0) * weights.back()[0], w);
    Tensor each;
    if (regression) {
      each = at::mse_loss(scores.view({-1}), at::tensor({0.5f, -1.0f, 2.0f, 0.0f}),
                          at::Reduction::None);
    } else {
      each = at::cross_entropy_loss(scores, at::tensor({0, 4, kIgnoreLabel, 2}, at::kLong), {},
                                    at::Reduction::None, kIgnoreLabel);
    }
    const auto grads = torch::autograd::grad({each.sum()}, {leaf, w});
    EXPECT_TRUE(ours.grad_in.allclose(grads[0], 1e-5, 1e-6));
    EXPECT_TRUE(ours.gradient[1].allclose(grads[1], 1e-5, 1e-6));
    // The highest score, and of equal ones the first; or the number.
    if (regression) {
      EXPECT_TRUE(predicted.allclose(scores.view({-1})));
    } else {
      EXPECT_TRUE(predicted.equal(scores.argmax(1)));
    }
    EXPECT_TRUE(predicted_of_zeros.equal(at::zeros_like(predicted)));
    const Tensor losses = ours.label_log_p.neg();
    if (!regression) losses[2] = 0;  // arbitrary where it does not count
    EXPECT_TRUE(losses.allclose(each, 1e-5, 1e-6));
    EXPECT_EQ(CountedTokens(batch), regression ? 4u : 3u);
  }
}

// The bits of the loss do not depend on the blocks; gradients of blocks are added.
TEST(ProgramHead, AddsTheGradientsOfBlocks) {
  // tanh keeps its result for the backward pass, so that the scores may not be overwritten.
  const std::string calls = R"([["aten::mul.Tensor",[{"slot":0},{"slot":1}]],)"
                            R"(["aten::linear",[{"slot":3},{"slot":2}]],)"
                            R"(["aten::tanh",[{"slot":4}]]])";
  const ModelSpec model = HeadOf("tokens", true, calls, 256);
  const JobSpec whole = SpecOf(model, 1024);
  const JobSpec blocks = SpecOf(model, 5);
  const auto weights = WeightsOf(whole);
  const MicroBatch batch = BatchOf(2, 9, 256);
  const Outcome a = RunStages(blocks, weights, weights, batch);
  const Outcome b = RunStages(whole, weights, weights, batch);
  EXPECT_TRUE(a.label_log_p.allclose(b.label_log_p, 1e-6, 1e-7));
  for (size_t u = 0; u < 2; ++u) {
    EXPECT_TRUE(a.gradients[3][u].allclose(b.gradients[3][u], 1e-4, 1e-6)) << u;
  }
}

// LibTorch gives a product with a bias as a view, over which the loss may not write by itself.
TEST(ProgramHead, TheLossMayOverwriteBiasedScores) {
  // The vector of the norm has as many elements as there are classes, so it can be the bias.
  const std::string calls = R"([["aten::linear",[{"slot":0},{"slot":2},{"slot":1}]]])";
  const ModelSpec model = HeadOf("tokens", true, calls, 32);
  const JobSpec whole = SpecOf(model, 1024);
  const auto weights = WeightsOf(whole);
  const MicroBatch batch = BatchOf(2, 9, 32);
  const Outcome a = RunStages(SpecOf(model, 5), weights, weights, batch);
  const Outcome b = RunStages(whole, weights, weights, batch);
  EXPECT_TRUE(a.label_log_p.allclose(b.label_log_p, 1e-6, 1e-7));
  const auto head = StagesOf(whole).back().release();
  const std::unique_ptr<TorchStage> owner(head);
  const Tensor x = Values({2, 9, 32}, 9, 3.0f);
  TorchBackward ours;
  {
    const at::NoGradGuard no_grad;
    ours = head->Backward(weights.back(), weights.back(), batch, {x, Tensor(), 0});
  }
  const Tensor bias = weights.back()[0].clone().requires_grad_(true);
  const Tensor matrix = weights.back()[1].clone().requires_grad_(true);
  const Tensor labels = at::tensor(at::ArrayRef<int32_t>(batch.labels), at::kLong);
  const Tensor loss = at::cross_entropy_loss(at::linear(x, matrix, bias).view({-1, 32}), labels, {},
                                             at::Reduction::Sum, kIgnoreLabel);
  const auto grads = torch::autograd::grad({loss}, {bias, matrix});
  EXPECT_TRUE(ours.gradient[0].allclose(grads[0], 1e-4, 1e-6));
  EXPECT_TRUE(ours.gradient[1].allclose(grads[1], 1e-4, 1e-6));
}

TEST(ProgramStage, GivesActivationsAndGradientsTheirOwnMemory) {
  json root = json::parse(LlamaProgram(LlamaShape()));
  // x + w + v: all gradients are views of the one that came in; the other weights get zeros.
  root["programs"][1]["calls"] = json::parse(R"([["aten::add.Tensor",[{"slot":0},{"slot":8}]],)"
                                             R"(["aten::add.Tensor",[{"slot":12},{"slot":9}]]])");
  root["programs"][1]["output"] = 13;
  const JobSpec spec = SpecOf(ModelOf(root.dump()), 1024);
  const auto weights = WeightsOf(spec);
  const auto stages = StagesOf(spec);
  const at::NoGradGuard no_grad;
  const MicroBatch batch = BatchOf(1, 1, 256);
  const Tensor x = Values({1, 1, 32}, 1);
  const Tensor dy = Values({1, 1, 32}, 2);
  const TorchBackward back = stages[1]->Backward(weights[1], weights[1], batch, {x, dy, 0});
  EXPECT_TRUE(back.grad_in.equal(dy));
  EXPECT_TRUE(back.gradient[7].equal(dy.view({32})));
  EXPECT_TRUE(back.gradient[8].equal(dy.view({32})));
  EXPECT_TRUE(back.gradient[0].equal(at::zeros({32, 32})));
  std::vector<Tensor> all = back.gradient;
  all.push_back(back.grad_in);
  all.push_back(dy);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(all[i].is_alias_of(all[j])) << i << " " << j;
  }

  root["programs"][1]["calls"] = json::parse(R"([["aten::alias",[{"slot":0}]]])");
  root["programs"][1]["output"] = 12;
  const JobSpec same = SpecOf(ModelOf(root.dump()), 1024);
  const Tensor y = StagesOf(same)[1]->Forward(weights[1], batch, x);
  EXPECT_TRUE(y.equal(x));
  EXPECT_FALSE(y.is_alias_of(x));
}

// As the relay gives them where StageSpec::backward_needs_weights is false.
TEST(ProgramStage, TakesGradientsWithoutValuesOfWeights) {
  ModelSpec by_hand;
  by_hand.gpt2 = SmallGpt2(0.25);
  const JobSpec spec = SpecOf(ModelOf(Gpt2Program(by_hand.gpt2, /*fused_gelu=*/true)), 1024);
  ASSERT_FALSE(spec.stages[0].backward_needs_weights);
  ASSERT_TRUE(spec.stages[1].backward_needs_weights);
  const auto weights = WeightsOf(spec);
  StageTensors without;
  for (const Tensor& weight : weights[0]) without.push_back(weight.to(at::kMeta));
  const auto stages = StagesOf(spec);
  const at::NoGradGuard no_grad;
  const MicroBatch batch = BatchOf(2, 7, 61);
  const Tensor dy = Values({2, 7, 24}, 2);
  const TorchBackward expected =
      stages[0]->Backward(weights[0], weights[0], batch, {Tensor(), dy, 0});
  const TorchBackward found = stages[0]->Backward(without, without, batch, {Tensor(), dy, 0});
  ASSERT_EQ(found.gradient.size(), expected.gradient.size());
  for (size_t u = 0; u < found.gradient.size(); ++u) {
    EXPECT_TRUE(found.gradient[u].equal(expected.gradient[u])) << u;
    EXPECT_TRUE(found.gradient[u].is_contiguous()) << u;
  }
}

TEST(ProgramStage, RefusesWhatIsNoActivation) {
  json root = json::parse(LlamaProgram(LlamaShape()));
  root["programs"][1]["calls"] = json::parse(R"([["aten::select.int",[{"slot":0},1,0]]])");
  root["programs"][1]["output"] = 12;
  const JobSpec spec = SpecOf(ModelOf(root.dump()), 1024);
  const auto weights = WeightsOf(spec);
  EXPECT_THROW(StagesOf(spec)[1]->Forward(weights[1], BatchOf(2, 4, 256), Values({2, 4, 32}, 1)),
               c10::Error);
}

TEST(ProgramStage, ReadsThePlacesOfPackedDocuments) {
  ModelSpec by_hand;
  by_hand.gpt2 = SmallGpt2(0);
  json root = json::parse(Gpt2Program(by_hand.gpt2, /*fused_gelu=*/true));
  const JobSpec causal = SpecOf(ModelOf(root.dump()), 1024);
  root["variant"] = "packed";
  const JobSpec packed = SpecOf(ModelOf(root.dump()), 1024);
  const auto weights = WeightsOf(packed);
  MicroBatch batch = BatchOf(2, 4, 61);
  batch.positions = {0, 1, 0, 1, 0, 0, 1, 2};
  const JobSpec spec = SpecOf(by_hand, 1024);
  EXPECT_TRUE(StagesOf(packed)[0]
                  ->Forward(weights[0], batch, {})
                  .equal(StagesOf(spec)[0]->Forward(weights[0], batch, {})));
  EXPECT_THROW(StagesOf(causal)[0]->Forward(weights[0], batch, {}), c10::Error);
}

TEST(ProgramStage, ReadsTheImageOfEachSample) {
  ModelProgram program;
  program.image = {3, 1, 2};
  CallList calls;
  calls.inputs = {ProgramInput::kPixelValues};
  MicroBatch batch = BatchOf(2, 4, 61);
  for (int i = 0; i < 12; ++i) batch.pixels.push_back(0.5f * static_cast<float>(i));
  const std::vector<Tensor> columns = ProgramColumns(program, calls, batch, at::zeros({1}));
  ASSERT_EQ(columns.size(), 1u);
  EXPECT_TRUE(columns[0].equal(at::arange(0, 6, 0.5, at::kFloat).view({2, 3, 1, 2})));
  batch.pixels.pop_back();
  EXPECT_THROW(ProgramColumns(program, calls, batch, at::zeros({1})), c10::Error);
}

TEST(ProgramStage, RefusesAJobOfAnotherLayout) {
  JobSpec spec = SpecOf(ModelOf(LlamaProgram(LlamaShape())), 1024);
  std::swap(spec.stages[1].uses[0], spec.stages[1].uses[1]);
  const absl::Status status = NewModelStage(spec, StageId(1)).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "not the layout of its model program")) << status;
  EXPECT_TRUE(NewModelStage(spec, StageId(2)).ok());
}

TEST(ProgramStage, DrawsAnotherMaskInEachStage) {
  LlamaShape shape;
  shape.attention_dropout = 0.5;
  const JobSpec spec = SpecOf(ModelOf(LlamaProgram(shape)), 1024);
  const JobSpec plain = SpecOf(ModelOf(LlamaProgram(LlamaShape())), 1024);
  const auto weights = WeightsOf(spec);
  MicroBatch batch = BatchOf(2, 8, 256);
  const at::NoGradGuard no_grad;
  const Tensor x = Values({2, 8, 32}, 1);
  const auto dropped = StagesOf(spec);
  const auto kept = StagesOf(plain);
  // Both layers have the same weights here, so that only their masks differ.
  const Tensor first = dropped[1]->Forward(weights[1], batch, x);
  EXPECT_TRUE(first.equal(dropped[1]->Forward(weights[1], batch, x)));
  EXPECT_FALSE(first.equal(dropped[2]->Forward(weights[1], batch, x)));
  EXPECT_FALSE(first.equal(kept[1]->Forward(weights[1], batch, x)));
  batch.held_out = true;
  EXPECT_TRUE(
      dropped[1]->Forward(weights[1], batch, x).equal(kept[1]->Forward(weights[1], batch, x)));
}

}  // namespace
}  // namespace eps
