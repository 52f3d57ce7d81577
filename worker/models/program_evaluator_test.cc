// Runs lists of calls: their arguments, calls that a stranger could write, and the functions that
// replace operators.

#include "worker/models/program_evaluator.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/models/json_fields.h"
#include "base/job/models/model_program.h"
#include "base/job/models/program_calls.h"
#include "base/job/models/program_operators.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/models/program_ops.h"
#include "worker/models/program_substitutions.h"
#include "worker/models/testing/values.h"

namespace eps {
namespace {

using at::Tensor;
using nlohmann::json;

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

TEST(Attention, IsLibTorchsWithoutDrops) {
  const Tensor q = Values({2, 4, 5, 8}, 1, 2.0f);
  const Tensor k = Values({2, 2, 5, 8}, 2, 2.0f);
  const Tensor v = Values({2, 2, 5, 8}, 3, 2.0f);
  const Tensor flags = at::ones({2, 1, 5, 5}, at::kBool).tril();
  const Tensor bias = Values({2, 1, 5, 5}, 4);
  const auto all = [](const Tensor& p) { return p; };
  const auto expect = [&](std::optional<Tensor> mask, bool causal, std::optional<double> scale) {
    const Tensor ours = AttentionWithDropout({q, k, v, mask, causal, scale, true}, all);
    const Tensor theirs = at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale, true);
    EXPECT_TRUE(ours.allclose(theirs, 1e-5, 1e-6));
  };
  expect(std::nullopt, false, std::nullopt);
  expect(std::nullopt, true, std::nullopt);
  expect(flags, false, 0.3);
  expect(bias, false, 0.3);
  // A row that is masked everywhere gives 0, not NaN.
  const Tensor nothing = at::zeros({5, 5}, at::kBool);
  EXPECT_TRUE(AttentionWithDropout({q, k, v, nothing, false, std::nullopt, true}, all)
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

}  // namespace
}  // namespace eps
