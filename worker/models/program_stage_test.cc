// Runs stages of model programs: beside GPT-2 by hand, beside LibTorch's own loss, and with
// programs that a stranger could write.

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/json_fields.h"
#include "base/job/models/model_program.h"
#include "base/job/models/program_calls.h"
#include "base/job/models/program_operators.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"
#include "worker/models/program_evaluator.h"
#include "worker/models/program_substitutions.h"

namespace eps {
namespace {

using at::Tensor;
using nlohmann::json;

// Reproducible values around 0 that differ everywhere.
Tensor Values(std::vector<int64_t> shape, uint32_t seed, float scale = 0.5f) {
  Tensor out = at::zeros(shape);
  uint32_t state = seed * 2654435761u + 1;
  float* const data = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = (static_cast<float>(state >> 8) / 16777216.0f - 0.5f) * scale;
  }
  return out;
}

JobSpec SpecOf(const ModelSpec& model, uint32_t loss_block) {
  JobSpec spec;
  spec.model = model;
  spec.training.loss_block_tokens = loss_block;
  spec.training.seed = 5;
  const absl::Status status = BuildLayout(0.01, &spec);
  EXPECT_TRUE(status.ok()) << status;
  return spec;
}

// The tensors of each stage; a tensor that two stages use is the same in both.
std::vector<StageTensors> WeightsOf(const JobSpec& spec, float scale = 0.5f) {
  std::vector<Tensor> tensors;
  for (const TensorSpec& t : spec.tensors) {
    std::vector<int64_t> shape = {t.rows, t.cols};
    if (t.rank == 1) shape.erase(shape.begin());
    tensors.push_back(Values(shape, static_cast<uint32_t>(tensors.size()), scale));
    if (t.init == Initializer::kOnes) tensors.back().add_(1.0);
  }
  std::vector<StageTensors> weights;
  for (const StageSpec& stage : spec.stages) {
    weights.emplace_back();
    for (const TensorUse& use : stage.uses) weights.back().push_back(tensors[use.tensor.value()]);
  }
  return weights;
}

MicroBatch BatchOf(uint32_t samples, uint32_t seq_len, uint32_t vocabulary) {
  MicroBatch batch;
  batch.step = Step(3);
  batch.index = 1;
  batch.samples = samples;
  batch.seq_len = seq_len;
  for (uint32_t i = 0; i < samples * seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((i * 7 + 3) % vocabulary));
    batch.labels.push_back(i % 5 == 4 ? kIgnoreLabel : static_cast<int32_t>((i * 5) % vocabulary));
  }
  return batch;
}

// All that one micro-batch gives.
struct Outcome {
  Tensor label_log_p;
  std::vector<StageTensors> gradients;
  std::vector<Tensor> activations;
};

std::vector<std::unique_ptr<TorchStage>> StagesOf(const JobSpec& spec) {
  std::vector<std::unique_ptr<TorchStage>> stages;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    absl::StatusOr<std::unique_ptr<TorchStage>> stage = NewModelStage(spec, StageId(s));
    EXPECT_TRUE(stage.ok()) << stage.status();
    stages.push_back(*std::move(stage));
  }
  return stages;
}

Outcome RunStages(const JobSpec& spec, const std::vector<StageTensors>& weights,
                  const std::vector<StageTensors>& for_input_gradient, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  const auto stages = StagesOf(spec);
  Outcome outcome;
  outcome.activations.emplace_back();
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    outcome.activations.push_back(stages[s]->Forward(weights[s], batch, outcome.activations[s]));
  }
  outcome.gradients.resize(stages.size());
  Tensor grad;
  for (size_t s = stages.size(); s-- > 0;) {
    TorchBackward back = stages[s]->Backward(weights[s], for_input_gradient[s], batch,
                                             outcome.activations[s], grad, /*loss_scale_log2=*/1);
    if (s + 1 == stages.size()) {
      outcome.label_log_p = back.label_log_p;
      EXPECT_TRUE(stages[s]
                      ->LabelLogP(weights[s], batch, outcome.activations[s])
                      .equal(outcome.label_log_p));
    }
    grad = back.grad_in;
    outcome.gradients[s] = std::move(back.gradient);
  }
  return outcome;
}

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

TEST_P(Gpt2Programs, HaveTheBitsOfTheProgramByHand) {
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
TEST(Gpt2Program, UsesSecondCopiesAsTheProgramByHand) {
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

// ---- the evaluator

// A stage of `inputs` tensors as weights and the calls of `calls`, the last of which is the output.
std::unique_ptr<const ProgramEvaluator> EvaluatorOf(uint32_t weights, const std::string& calls) {
  json program = {{"activation", true},      {"weights", weights}, {"constants", 0},
                  {"inputs", json::array()}, {"flops", {0, 0}},    {"saved", {0, 0}}};
  program["calls"] = json::parse(calls);
  program["output"] = weights + program["calls"].size();
  json root = json::parse(LlamaProgram(LlamaShape()));
  root["programs"][1] = program;
  for (int s : {1, 2}) {
    json& uses = root["stages"][s]["uses"];
    while (uses.size() > weights) uses.erase(uses.size() - 1);
    for (json& use : uses) use["role"] = "other";
    root["stages"][s]["constants"] = json::array();
  }
  absl::StatusOr<ModelProgram> read = ParseModelProgram(root.dump());
  EXPECT_TRUE(read.ok()) << read.status();
  auto evaluator = ProgramEvaluator::Create(read->calls_of(1), "middle");
  EXPECT_TRUE(evaluator.ok()) << evaluator.status();
  return *std::move(evaluator);
}

ProgramInputs InputsOf(const Tensor& activation, const std::vector<Tensor>& weights) {
  ProgramInputs inputs;
  inputs.activation = activation;
  for (const Tensor& w : weights) inputs.weights.push_back({w, Tensor(), nullptr});
  return inputs;
}

TEST(ProgramEvaluator, ConvertsArgumentsByTheSchema) {
  const Tensor x = Values({2, 3, 4}, 1);
  const Tensor w = Values({4}, 2);
  const struct {
    const char* calls;
    std::function<Tensor()> expected;
  } cases[] = {
      {R"([["aten::add.Tensor",[{"slot":0},{"slot":1},2]]])", [&] { return x.add(w, 2); }},
      {R"([["aten::add.Tensor",[{"slot":0},1]]])", [&] { return x.add(1); }},
      {R"([["aten::mul.Tensor",[{"slot":0},0.1]]])", [&] { return x.mul(0.1); }},
      {R"([["aten::pow.Tensor_Scalar",[{"slot":0},2]]])", [&] { return x.pow(2); }},
      {R"([["aten::layer_norm",[{"slot":0},[4],{"slot":1},null,1]]])",
       [&] { return at::layer_norm(x, {4}, w, {}, 1.0); }},
      {R"([["aten::softmax.int",[{"slot":0},-1,{"dtype":"float64"}]],)"
       R"(["aten::to.dtype",[{"slot":2},{"dtype":"float32"}]]])",
       [&] { return x.softmax(-1, at::kDouble).to(at::kFloat); }},
      {R"([["aten::sym_size.int",[{"slot":0},1]],["int.mul",[{"slot":2},4]],)"
       R"(["aten::view",[{"slot":0},[2,{"slot":3}]]]])",
       [&] {
         return x.view({2, 12});
       }},
      {R"([["aten::sym_size.int",[{"slot":0},2]],["aten::mul.Tensor",[{"slot":0},{"slot":2}]]])",
       [&] { return x.mul(4); }},
      {R"([["aten::split_with_sizes",[{"slot":0},[1,3],2]],["item",[{"slot":2},1]]])",
       [&] { return x.narrow(2, 1, 3); }},
      {R"([["aten::max.dim",[{"slot":0},1]],["item",[{"slot":2},0]]])",
       [&] { return std::get<0>(x.max(1)); }},
      {R"([["aten::gt.Scalar",[{"slot":0},0]],["aten::where.ScalarOther",)"
       R"([{"slot":2},{"slot":0},{"float":"-inf"}]]])",
       [&] { return at::where(x.gt(0), x, -INFINITY); }},
      {R"([["aten::arange",[3,{"dtype":"int64"},null,{"device":""},false]],)"
       R"(["aten::index.Tensor",[{"slot":0},[null,{"slot":2}]]]])",
       [&] { return x.clone(); }},
      {R"([["aten::contiguous",[{"slot":0},{"memory_format":"contiguous"}]],)"
       R"(["aten::cat",[[{"slot":2},{"slot":0}],-1]]])",
       [&] {
         return at::cat({x, x}, -1);
       }},
      {R"([["aten::sum.dim_IntList",[{"slot":0},[-1],true]]])",
       [&] { return x.sum(at::IntArrayRef{-1}, true); }},
      {R"([["aten::mean.dim",[{"slot":0},-1]]])", [&] { return x.mean(-1); }},
      {R"([["aten::gelu",[{"slot":0},"tanh"]]])", [&] { return at::gelu(x, "tanh"); }},
      {R"([["int.floordiv",[-7,2]],["int.add",[{"slot":2},5]],["int.sub",[{"slot":3},1]],)"
       R"(["aten::mul.Tensor",[{"slot":0},{"slot":4}]]])",
       [&] { return x.mul(0); }},
  };
  for (const auto& c : cases) {
    const Tensor y = EvaluatorOf(1, c.calls)->Run(InputsOf(x, {w}));
    EXPECT_TRUE(y.equal(c.expected())) << c.calls << y << c.expected();
    EXPECT_EQ(y.scalar_type(), at::kFloat) << c.calls;
  }
}

// What a stranger could write instead.
TEST(ProgramEvaluator, RefusesArgumentsThatDoNotFit) {
  const struct {
    const char* call;
    const char* message;
  } cases[] = {
      {R"(["aten::add.Tensor",[{"slot":0}]])", "lacks its argument other"},
      {R"(["aten::add.Tensor",[{"slot":0},1,1,1]])", "takes at most 3 arguments, found 4"},
      {R"(["aten::add.Tensor",[{"slot":0},"x"]])", "argument other: expected Tensor"},
      {R"(["aten::add.Tensor",[5,{"slot":0},[1]]])", "argument alpha: expected Scalar"},
      {R"(["aten::cat",[[{"slot":0},{"slot":2}]]])", "expected Tensor, slot 2 holds another type"},
      {R"(["aten::view",[{"slot":0},[{"slot":1}]]])", "argument size: expected int, slot 1 holds"},
      {R"(["aten::view",[{"slot":0},[[2]]]])", "argument size: expected int[]"},
      {R"(["aten::view",[{"slot":0},[0.5]]])", "argument size: expected int"},
      {R"(["aten::cat",[{"slot":0}]])", "argument tensors: expected Tensor[], slot 0 holds"},
      {R"(["aten::to.dtype",[{"slot":0},6]])", "argument dtype: expected an element type"},
      {R"(["aten::to.dtype",[{"slot":0},{"device":""}]])", "argument dtype: expected an element"},
      {R"(["aten::contiguous",[{"slot":0},0]])",
       "argument memory_format: expected a memory format"},
      {R"(["aten::ones",[[2],null,3]])", "argument layout: expected null"},
      {R"(["aten::ones",[[2],null,null,"cuda"]])", "argument device: expected a device"},
      {R"(["aten::dropout",[{"slot":0},1.0,true]])", "probability from 0 to below 1, found 1"},
      {R"(["aten::dropout",[{"slot":0},-0.1,true]])", "probability from 0 to below 1"},
      {R"(["aten::dropout",[{"slot":0},{"slot":3},true]])", "probability is not a number"},
      {R"(["item",[{"slot":0},0]])", "argument 0 has another type"},
      {R"(["item",[{"slot":2},{"slot":0}]])", "argument 1 has another type"},
      {R"(["int.add",[1]])", "expected 2 arguments"},
      {R"(["int.add",[1,0.5]])", "argument 1 has another type"},
  };
  for (const auto& c : cases) {
    CallList list;
    list.has_activation = true;
    list.weights = 1;
    const std::string calls = absl::StrCat(R"([["aten::chunk",[{"slot":0},2]],)", c.call, "]");
    json program = {
        {"activation", true}, {"weights", 1},    {"constants", 0},  {"inputs", json::array()},
        {"output", 0},        {"flops", {0, 0}}, {"saved", {0, 0}}, {"calls", json::parse(calls)}};
    // Slot 3 is an integer where a case reads it.
    if (absl::StrContains(c.call, "\"slot\":3")) {
      program["calls"].insert(program["calls"].begin() + 1,
                              json::parse(R"(["aten::sym_size.int",[{"slot":0},0]])"));
    }
    FirstError error;
    list = ReadCallList(json::parse(program.dump()), "stage middle", 1e18, &error);
    ASSERT_TRUE(error.ok()) << error.status();
    const absl::Status status = ProgramEvaluator::Create(list, "middle").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.call;
    EXPECT_TRUE(absl::StrContains(status.message(), c.message))
        << status << "\nexpected " << c.message;
  }
}

TEST(ProgramEvaluator, NamesTheCallThatFails) {
  const struct {
    const char* calls;
    const char* message;
  } cases[] = {
      {R"([["aten::neg",[{"slot":0}]],["aten::view",[{"slot":2},[7,-1]]]])",
       "in call 1, aten::view"},
      {R"([["aten::chunk",[{"slot":0},2]],["item",[{"slot":2},9]]])", "item 9 of 2"},
      {R"([["aten::sym_size.int",[{"slot":0},0]],["int.floordiv",[{"slot":2},0]],)"
       R"(["aten::mul.Tensor",[{"slot":0},{"slot":3}]]])",
       "division by 0"},
      {R"([["aten::sym_size.int",[{"slot":0},9]],["aten::neg",[{"slot":0}]]])", "in call 0"},
  };
  for (const auto& c : cases) {
    const auto evaluator = EvaluatorOf(1, c.calls);
    try {
      evaluator->Run(InputsOf(Values({2, 3, 4}, 1), {Values({4}, 2)}));
      ADD_FAILURE() << c.calls;
    } catch (const c10::Error& error) {
      EXPECT_TRUE(absl::StrContains(error.what_without_backtrace(), c.message))
          << error.what_without_backtrace();
    }
  }
}

TEST(ProgramEvaluator, KnowsEveryOperatorOfItsList) {
  for (const absl::string_view name : ProgramOperators()) {
    if (!absl::StartsWith(name, "aten::")) continue;
    const size_t dot = name.find('.');
    const std::string base(name.substr(0, dot));
    const std::string overload(dot == absl::string_view::npos ? "" : name.substr(dot + 1));
    const auto handle = c10::Dispatcher::singleton().findSchema({base, overload});
    ASSERT_TRUE(handle.has_value()) << name;
    EXPECT_FALSE(handle->schema().is_mutable()) << name;
  }
}

// ---- substitutions

TEST(Attention, IsLibTorchsWithAMaskOfOnes) {
  const Tensor q = Values({2, 4, 5, 8}, 1, 2.0f);
  const Tensor k = Values({2, 2, 5, 8}, 2, 2.0f);
  const Tensor v = Values({2, 2, 5, 8}, 3, 2.0f);
  const Tensor flags = at::ones({2, 1, 5, 5}, at::kBool).tril();
  const Tensor bias = Values({2, 1, 5, 5}, 4);
  const auto ones = [](const Tensor& p) { return at::ones(p.sizes()); };
  const auto expect = [&](std::optional<Tensor> mask, bool causal, std::optional<double> scale) {
    const Tensor ours = AttentionWithDropout({q, k, v, mask, causal, scale, true}, ones);
    const Tensor theirs = at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale, true);
    EXPECT_TRUE(ours.allclose(theirs, 1e-5, 1e-6));
  };
  expect(std::nullopt, false, std::nullopt);
  expect(std::nullopt, true, std::nullopt);
  expect(flags, false, 0.3);
  expect(bias, false, 0.3);
  // A row that is masked everywhere gives 0, not NaN.
  const Tensor nothing = at::zeros({5, 5}, at::kBool);
  EXPECT_TRUE(AttentionWithDropout({q, k, v, nothing, false, std::nullopt, true}, ones)
                  .equal(at::zeros({2, 4, 5, 8})));
}

TEST(GroupedProduct, MultipliesEachGroup) {
  const Tensor rows = Values({6, 3}, 1);
  const Tensor matrices = Values({3, 3, 4}, 2);
  const Tensor ends = at::tensor({2, 2, 6}, at::kInt);
  const Tensor y = GroupedProduct(rows, matrices, ends);
  EXPECT_TRUE(y.narrow(0, 0, 2).equal(rows.narrow(0, 0, 2).mm(matrices[0])));
  EXPECT_TRUE(y.narrow(0, 2, 4).equal(rows.narrow(0, 2, 4).mm(matrices[2])));
  EXPECT_THROW(GroupedProduct(rows, matrices, at::tensor({2, 2, 5}, at::kInt)), c10::Error);
}

// ---- stages

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
    Tensor log_p;
    {
      const at::NoGradGuard no_grad;
      ours = head->Backward(weights.back(), weights.back(), batch, x, Tensor(), 0);
      log_p = head->LabelLogP(weights.back(), batch, x);
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
  const TorchBackward back = stages[1]->Backward(weights[1], weights[1], batch, x, dy, 0);
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

TEST(ProgramStage, RefusesWhatIsNoActivation) {
  json root = json::parse(LlamaProgram(LlamaShape()));
  root["programs"][1]["calls"] = json::parse(R"([["aten::select.int",[{"slot":0},1,0]]])");
  root["programs"][1]["output"] = 12;
  const JobSpec spec = SpecOf(ModelOf(root.dump()), 1024);
  const auto weights = WeightsOf(spec);
  EXPECT_THROW(StagesOf(spec)[1]->Forward(weights[1], BatchOf(2, 4, 256), Values({2, 4, 32}, 1)),
               c10::Error);
}

TEST(ProgramStage, RefusesAJobOfAnotherLayout) {
  JobSpec spec = SpecOf(ModelOf(LlamaProgram(LlamaShape())), 1024);
  std::swap(spec.stages[1].uses[0], spec.stages[1].uses[1]);
  const absl::Status status = NewModelStage(spec, StageId(1)).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "not the layout of its model program")) << status;
  EXPECT_TRUE(NewModelStage(spec, StageId(2)).ok());
}

TEST(ProgramStage, DrawsAnotherMaskAtEachSite) {
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
