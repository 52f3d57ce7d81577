#include "base/testing/test_programs.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/models/model_family.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

json Slot(int slot) { return {{"slot", slot}}; }
json Type(const char* name) { return {{"dtype", name}}; }

// The calls of a stage, in the order in which they are made.
class Calls {
 public:
  Calls(bool activation, int weights, int constants, std::vector<std::string> inputs)
      : slots_((activation ? 1 : 0) + weights + constants + static_cast<int>(inputs.size())),
        weight_(activation ? 1 : 0) {
    program_ = {{"activation", activation}, {"weights", weights},     {"constants", constants},
                {"inputs", inputs},         {"calls", json::array()}, {"flops", {0, 0}},
                {"saved", {0, 0}}};
  }
  json weight(int i) const { return Slot(weight_ + i); }
  // A vector, because compilers differ on whether json{x} is x or a list of it.
  json Call(const std::string& op, const std::vector<json>& arguments) {
    program_["calls"].push_back(json::array({op, json(arguments)}));
    return Slot(slots_++);
  }
  void Cost(double flops, double flops2, double saved, double saved2) {
    program_["flops"] = {flops, flops2};
    program_["saved"] = {saved, saved2};
  }
  json Program(const json& output) {
    program_["output"] = output["slot"];
    return program_;
  }

 private:
  json program_;
  int slots_;
  const int weight_;
};

json Normal(double std) { return {{"kind", "normal"}, {"a", std}, {"b", 0}}; }
json Fill(const char* kind) { return {{"kind", kind}, {"a", 0}, {"b", 0}}; }

// A whole program.
class Model {
 public:
  Model(const char* architecture, const char* model_type, const std::string& dtype, int vocab,
        int positions, int width) {
    root_ = {{"format", 1},
             {"architecture", architecture},
             {"model_type", model_type},
             {"task", "causal_lm"},
             {"variant", "causal"},
             {"dtype", dtype},
             {"made_by", "a test"},
             {"shape",
              {{"vocab_size", vocab},
               {"max_seq_len", positions},
               {"width", width},
               {"classes", 0},
               {"tokens", 0},
               {"image", json::array()}}},
             {"constants", json::array()},
             {"tensors", json::array()},
             {"programs", json::array()},
             {"stages", json::array()},
             {"head", {{"kind", "tokens"}, {"rowwise", true}}}};
  }
  int Tensor(const std::string& name, std::vector<int> shape, json init,
             std::vector<std::string> aliases = {}) {
    root_["tensors"].push_back({{"name", name},
                                {"shape", shape},
                                {"init", std::move(init)},
                                {"files", {{"kind", "name"}, {"names", json::array({name})}}},
                                {"aliases", aliases}});
    return static_cast<int>(root_["tensors"].size()) - 1;
  }
  int Constant(const std::vector<float>& values, std::vector<int> shape) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    root_["constants"].push_back(
        {{"dtype", "float32"}, {"shape", shape}, {"data", absl::Base64Escape(bytes)}});
    return static_cast<int>(root_["constants"].size()) - 1;
  }
  // Adds `program` unless it is there already, and a stage that runs it.
  void Stage(const std::string& name, const json& program, json uses, json constants) {
    size_t i = 0;
    while (i < root_["programs"].size() && root_["programs"][i] != program) ++i;
    if (i == root_["programs"].size()) root_["programs"].push_back(program);
    root_["stages"].push_back({{"name", name},
                               {"program", i},
                               {"uses", std::move(uses)},
                               {"constants", std::move(constants)},
                               {"needs_weights", needs_weights_}});
    needs_weights_ = true;
  }
  std::string Text() const { return root_.dump(); }

 private:
  json root_;
  bool needs_weights_ = false;  // the first stage only looks rows up, and adds
};

json Use(int tensor, const char* role) { return {{"tensor", tensor}, {"role", role}}; }

// Casts FP32 to the type of the model; FP32 itself needs no call.
json Narrowed(Calls* c, const json& x, const std::string& dtype) {
  return dtype == "float32" ? x : c->Call("aten::to.dtype", {x, Type(dtype.c_str())});
}

// LlamaRMSNorm, whose statistics are FP32.
json RmsNorm(Calls* c, const json& x, const json& weight, const std::string& dtype) {
  const json wide = dtype == "float32" ? x : c->Call("aten::to.dtype", {x, Type("float32")});
  const json square = c->Call("aten::pow.Tensor_Scalar", {wide, 2});
  const json mean = c->Call("aten::mean.dim", {square, json::array({-1}), true});
  const json root = c->Call("aten::rsqrt", {c->Call("aten::add.Tensor", {mean, 1e-6})});
  const json y = Narrowed(c, c->Call("aten::mul.Tensor", {wide, root}), dtype);
  return c->Call("aten::mul.Tensor", {weight, y});
}

// rotate_half(x) * sin + x * cos, for x [B, heads, T, size].
json Rotated(Calls* c, const json& x, const json& cos, const json& sin, int size) {
  const json straight = c->Call("aten::mul.Tensor", {x, cos});
  const json low = c->Call("aten::slice.Tensor", {x, 3, 0, size / 2});
  const json high = c->Call("aten::slice.Tensor", {x, 3, size / 2, size});
  const json minus = c->Call("aten::neg", {high});
  const json turned = c->Call("aten::cat", {json::array({minus, low}), -1});
  return c->Call("aten::add.Tensor", {straight, c->Call("aten::mul.Tensor", {turned, sin})});
}

json LlamaLayer(const LlamaShape& s) {
  const int size = s.width / s.heads;
  Calls c(true, 9, 1, {"position_ids"});
  const json x = Slot(0), frequencies = Slot(10), positions = Slot(11);
  const json batch = c.Call("aten::sym_size.int", {x, 0});
  const json tokens = c.Call("aten::sym_size.int", {x, 1});
  const json at =
      c.Call("aten::to.dtype", {c.Call("aten::unsqueeze", {positions, 2}), Type("float32")});
  const json angle =
      c.Call("aten::mul.Tensor",
             {at, c.Call("aten::to.device", {frequencies, {{"device", ""}}, Type("float32")})});
  const json both = c.Call("aten::cat", {json::array({angle, angle}), -1});
  const auto turn = [&](const char* op) {
    return c.Call("aten::unsqueeze", {Narrowed(&c, c.Call(op, {both}), s.dtype), 1});
  };
  const json cos = turn("aten::cos");
  const json sin = turn("aten::sin");
  const json h = RmsNorm(&c, x, c.weight(7), s.dtype);
  const auto heads = [&](int weight) {
    const json y = c.Call("aten::linear", {h, c.weight(weight)});
    const json split = c.Call("aten::view", {y, json::array({batch, tokens, -1, size})});
    return c.Call("aten::transpose.int", {split, 1, 2});
  };
  const json q = Rotated(&c, heads(0), cos, sin, size);
  const json k = Rotated(&c, heads(1), cos, sin, size);
  const json v = heads(2);
  const json attended =
      c.Call("aten::scaled_dot_product_attention",
             {q, k, v, nullptr, s.attention_dropout, true, 1 / std::sqrt(double(size)), true});
  const json rows = c.Call("aten::reshape", {c.Call("aten::transpose.int", {attended, 1, 2}),
                                             json::array({batch, tokens, -1})});
  const json middle = c.Call("aten::add.Tensor", {x, c.Call("aten::linear", {rows, c.weight(3)})});
  const json h2 = RmsNorm(&c, middle, c.weight(8), s.dtype);
  const json gate = c.Call("aten::silu", {c.Call("aten::linear", {h2, c.weight(4)})});
  const json up = c.Call("aten::linear", {h2, c.weight(5)});
  const json down = c.Call("aten::linear", {c.Call("aten::mul.Tensor", {gate, up}), c.weight(6)});
  c.Cost(2.0 * s.width * (2 * s.width + 2 * size * s.kv_heads + 3 * s.inner), 4.0 * s.width,
         4.0 * (14 * s.width + 4 * s.inner), 0);
  return c.Program(c.Call("aten::add.Tensor", {middle, down}));
}

// NewGELUActivation in one call or in eight.
json Gelu(Calls* c, const json& x, bool fused) {
  if (fused) return c->Call("aten::gelu", {x, "tanh"});
  const json half = c->Call("aten::mul.Tensor", {x, 0.5});
  const json cube = c->Call("aten::pow.Tensor_Scalar", {x, 3.0});
  const json inner =
      c->Call("aten::add.Tensor", {x, c->Call("aten::mul.Tensor", {cube, 0.044715})});
  const json scaled = c->Call("aten::mul.Tensor", {inner, 0.7978845608028654});
  const json one = c->Call("aten::add.Tensor", {c->Call("aten::tanh", {scaled}), 1.0});
  return c->Call("aten::mul.Tensor", {half, one});
}

json Gpt2Layer(const Gpt2Config& g, int inner, bool fused_gelu) {
  const int width = g.n_embd, size = width / g.n_head;
  Calls c(true, 12, 0, {});
  const json x = Slot(0);
  const json batch = c.Call("aten::sym_size.int", {x, 0});
  const json tokens = c.Call("aten::sym_size.int", {x, 1});
  const auto norm = [&](const json& y, int weight) {
    return c.Call("aten::layer_norm", {y, json::array({width}), c.weight(weight),
                                       c.weight(weight + 1), g.layer_norm_epsilon, false});
  };
  const auto conv = [&](const json& y, int weight, int in, int out) {
    const json rows = c.Call("aten::view", {y, json::array({-1, in})});
    const json z = c.Call("aten::addmm", {c.weight(weight + 1), rows, c.weight(weight)});
    return c.Call("aten::view", {z, json::array({batch, tokens, out})});
  };
  const json qkv = conv(norm(x, 0), 2, width, 3 * width);
  const json thirds = c.Call("aten::split.Tensor", {qkv, width, 2});
  std::vector<json> heads;
  for (int i = 0; i < 3; ++i) {
    const json third = c.Call("item", {thirds, i});
    const json split = c.Call("aten::view", {third, json::array({batch, tokens, -1, size})});
    heads.push_back(c.Call("aten::transpose.int", {split, 1, 2}));
  }
  const json attended = c.Call("aten::scaled_dot_product_attention",
                               {heads[0], heads[1], heads[2], nullptr, g.attn_pdrop, true});
  const json merged = c.Call("aten::reshape", {c.Call("aten::transpose.int", {attended, 1, 2}),
                                               json::array({batch, tokens, -1})});
  const json projected =
      c.Call("aten::dropout", {conv(merged, 4, width, width), g.resid_pdrop, true});
  const json middle = c.Call("aten::add.Tensor", {projected, x});
  const json up = conv(norm(middle, 6), 8, width, inner);
  const json down = conv(Gelu(&c, up, fused_gelu), 10, inner, width);
  const json dropped = c.Call("aten::dropout", {down, g.resid_pdrop, true});
  c.Cost(4.0 * width * inner + 8.0 * width * width, 4.0 * width, 4.0 * (12 * width + 2 * inner), 0);
  return c.Program(c.Call("aten::add.Tensor", {middle, dropped}));
}

}  // namespace

std::string LlamaProgram(const LlamaShape& s) {
  Model model("LlamaForCausalLM", "llama", s.dtype, s.vocab, s.positions, s.width);
  const int size = s.width / s.heads;
  std::vector<float> frequencies;
  for (int i = 0; i < size / 2; ++i) {
    frequencies.push_back(1.0f / std::pow(10000.0f, 2.0f * static_cast<float>(i) / size));
  }
  const int constant = model.Constant(frequencies, {size / 2});

  const int embedding = model.Tensor("model.embed_tokens.weight", {s.vocab, s.width}, Normal(0.02));
  Calls embed(false, 1, 0, {"input_ids"});
  const json looked_up = embed.Call("aten::embedding", {Slot(0), Slot(1)});
  model.Stage("embed", embed.Program(looked_up), json::array({Use(embedding, "embedding")}),
              json::array());
  for (int i = 0; i < s.layers; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const auto linear = [&](const char* name, int out, int in) {
      return Use(model.Tensor(absl::StrCat(prefix, name, ".weight"), {out, in}, Normal(0.02)),
                 "linear_out_in");
    };
    const auto norm = [&](const char* name) {
      return Use(model.Tensor(absl::StrCat(prefix, name, ".weight"), {s.width}, Fill("ones")),
                 "norm");
    };
    const json uses = {linear("self_attn.q_proj", s.width, s.width),
                       linear("self_attn.k_proj", size * s.kv_heads, s.width),
                       linear("self_attn.v_proj", size * s.kv_heads, s.width),
                       linear("self_attn.o_proj", s.width, s.width),
                       linear("mlp.gate_proj", s.inner, s.width),
                       linear("mlp.up_proj", s.inner, s.width),
                       linear("mlp.down_proj", s.width, s.inner),
                       norm("input_layernorm"),
                       norm("post_attention_layernorm")};
    model.Stage(absl::StrCat("layers.", i), LlamaLayer(s), uses, json::array({constant}));
  }
  Calls head(true, 2, 0, {});
  const json h = RmsNorm(&head, Slot(0), head.weight(0), s.dtype);
  const json scores = head.Call("aten::linear", {h, head.weight(1)});
  head.Cost(2.0 * s.width * s.vocab, 0, 4.0 * 3 * s.width, 0);
  const json uses = {
      Use(model.Tensor("model.norm.weight", {s.width}, Fill("ones")), "norm"),
      Use(model.Tensor("lm_head.weight", {s.vocab, s.width}, Normal(0.02)), "linear_out_in")};
  model.Stage("head", head.Program(scores), uses, json::array());
  return model.Text();
}

std::string Gpt2Program(const Gpt2Config& g, bool fused_gelu, const std::string& dtype) {
  Model model("GPT2LMHeadModel", "gpt2", dtype, g.vocab_size, g.n_positions, g.n_embd);
  const int width = g.n_embd;
  const int inner = g.n_inner > 0 ? g.n_inner : 4 * width;
  const double std = g.initializer_range;
  std::vector<std::string> aliases;
  if (g.tie_word_embeddings) aliases.emplace_back("lm_head.weight");
  const int wte =
      model.Tensor("transformer.wte.weight", {g.vocab_size, width}, Normal(std), aliases);
  const int wpe = model.Tensor("transformer.wpe.weight", {g.n_positions, width}, Normal(std));
  Calls embed(false, 2, 0, {"input_ids", "position_ids"});
  const json token = embed.Call("aten::embedding", {Slot(0), Slot(2)});
  const json position = embed.Call("aten::embedding", {Slot(1), Slot(3)});
  const json sum = embed.Call("aten::add.Tensor", {token, position});
  const json dropped = embed.Call("aten::dropout", {sum, g.embd_pdrop, true});
  model.Stage("embedding", embed.Program(dropped),
              json::array({Use(wte, "embedding"), Use(wpe, "embedding")}), json::array());
  for (int i = 0; i < g.n_layer; ++i) {
    const std::string prefix = absl::StrCat("transformer.h.", i, ".");
    json uses = json::array();
    const auto vector = [&](const std::string& name, int size, const char* init, const char* role) {
      uses.push_back(Use(model.Tensor(prefix + name, {size}, Fill(init)), role));
    };
    const auto norm = [&](const std::string& name) {
      vector(name + ".weight", width, "ones", "norm");
      vector(name + ".bias", width, "zeros", "norm");
    };
    const auto conv = [&](const std::string& name, int in, int out, double deviation) {
      const int weight = model.Tensor(prefix + name + ".weight", {in, out}, Normal(deviation));
      uses.push_back(Use(weight, "linear_in_out"));
      vector(name + ".bias", out, "zeros", "bias");
    };
    const double residual = std / std::sqrt(2.0 * g.n_layer);
    norm("ln_1");
    conv("attn.c_attn", width, 3 * width, std);
    conv("attn.c_proj", width, width, residual);
    norm("ln_2");
    conv("mlp.c_fc", width, inner, std);
    conv("mlp.c_proj", inner, width, residual);
    model.Stage(absl::StrCat("h.", i), Gpt2Layer(g, inner, fused_gelu), uses, json::array());
  }
  Calls head(true, 3, 0, {});
  const json h = head.Call("aten::layer_norm", {Slot(0), json::array({width}), head.weight(0),
                                                head.weight(1), g.layer_norm_epsilon, false});
  const json scores = head.Call("aten::linear", {h, head.weight(2)});
  head.Cost(2.0 * width * g.vocab_size, 0, 4.0 * width, 0);
  const int weight = model.Tensor("transformer.ln_f.weight", {width}, Fill("ones"));
  const int bias = model.Tensor("transformer.ln_f.bias", {width}, Fill("zeros"));
  const int output = g.tie_word_embeddings
                         ? wte
                         : model.Tensor("lm_head.weight", {g.vocab_size, width}, Normal(std));
  model.Stage("head", head.Program(scores),
              json::array({Use(weight, "norm"), Use(bias, "norm"), Use(output, "linear_out_in")}),
              json::array());
  return model.Text();
}

ModelSpec ModelOf(const std::string& program_text) {
  absl::StatusOr<ModelSpec> model = FamilyOf(ModelType::kProgram).Parse(program_text, "a test");
  EPS_CHECK_MSG(model.ok(), model.status());
  return *std::move(model);
}

}  // namespace eps
