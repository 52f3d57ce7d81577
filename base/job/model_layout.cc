#include "base/job/model_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr GroupId kDecay(0);
constexpr GroupId kNoDecay(1);
constexpr double kSyntheticStd = 0.02;

// Appends tensors and stages to a spec.
class LayoutWriter {
 public:
  explicit LayoutWriter(JobSpec* spec) : spec_(spec) {}

  void Stage(const std::string& name) {
    spec_->stages.emplace_back();
    spec_->stages.back().name = name;
  }
  TensorId Matrix(const std::string& name, int64_t rows, int64_t cols, double std) {
    TensorSpec tensor;
    tensor.name = name;
    tensor.rows = static_cast<uint32_t>(rows);
    tensor.cols = static_cast<uint32_t>(cols);
    tensor.group = kDecay;
    tensor.init = Initializer::kNormal;
    tensor.init_std = std;
    return Add(tensor);
  }
  TensorId Vector(const std::string& name, int64_t cols, Initializer init) {
    TensorSpec tensor;
    tensor.name = name;
    tensor.rank = 1;
    tensor.rows = 1;
    tensor.cols = static_cast<uint32_t>(cols);
    tensor.group = kNoDecay;
    tensor.init = init;
    return Add(tensor);
  }
  // Uses of the last stage. A lookup, and all of a vector, reads along rows both ways.
  void UseAsRows(TensorId id) { Use(id, Axis::kRow, Axis::kRow); }
  // x @ W contracts the first dimension of W, dY @ W^T the last.
  void UseAsInOut(TensorId id) { Use(id, Axis::kColumn, Axis::kRow); }
  // x @ W^T: the other way round.
  void UseAsOutIn(TensorId id) { Use(id, Axis::kRow, Axis::kColumn); }

  void NormVectors(const std::string& prefix, int width) {
    UseAsRows(Vector(prefix + ".weight", width, Initializer::kOnes));
    UseAsRows(Vector(prefix + ".bias", width, Initializer::kZeros));
  }
  void Linear(const std::string& prefix, int64_t in, int64_t out, double std) {
    UseAsInOut(Matrix(prefix + ".weight", in, out, std));
    UseAsRows(Vector(prefix + ".bias", out, Initializer::kZeros));
  }

 private:
  TensorId Add(const TensorSpec& tensor) {
    spec_->tensors.push_back(tensor);
    return TensorId(static_cast<uint32_t>(spec_->tensors.size() - 1));
  }
  void Use(TensorId id, Axis forward, Axis backward) {
    spec_->stages.back().uses.push_back({id, forward, backward});
  }

  JobSpec* const spec_;
};

void BuildGpt2(const Gpt2Config& c, LayoutWriter* out) {
  const int64_t width = c.n_embd;
  const int64_t inner = c.n_inner > 0 ? c.n_inner : 4 * width;
  const double std = c.initializer_range;
  const double residual_std = std / std::sqrt(2.0 * c.n_layer);

  out->Stage("embedding");
  const TensorId wte = out->Matrix("transformer.wte.weight", c.vocab_size, width, std);
  out->UseAsRows(wte);
  out->UseAsRows(out->Matrix("transformer.wpe.weight", c.n_positions, width, std));
  for (int i = 0; i < c.n_layer; ++i) {
    const std::string prefix = absl::StrCat("transformer.h.", i);
    out->Stage(absl::StrCat("h.", i));
    out->NormVectors(prefix + ".ln_1", c.n_embd);
    out->Linear(prefix + ".attn.c_attn", width, 3 * width, std);
    out->Linear(prefix + ".attn.c_proj", width, width, residual_std);
    out->NormVectors(prefix + ".ln_2", c.n_embd);
    out->Linear(prefix + ".mlp.c_fc", width, inner, std);
    out->Linear(prefix + ".mlp.c_proj", inner, width, residual_std);
  }
  out->Stage("head");
  out->NormVectors("transformer.ln_f", c.n_embd);
  out->UseAsOutIn(c.tie_word_embeddings ? wte
                                        : out->Matrix("lm_head.weight", c.vocab_size, width, std));
}

void BuildSynthetic(const SyntheticConfig& c, LayoutWriter* out) {
  TensorId first;
  for (int i = 0; i < c.n_layer; ++i) {
    const std::string name = absl::StrCat("layer.", i);
    out->Stage(name);
    const bool shares = c.tied && i > 0 && i == c.n_layer - 1;
    const TensorId weight = shares ? first : out->Matrix(name, c.n_embd, c.n_embd, kSyntheticStd);
    if (i == 0) first = weight;
    out->UseAsInOut(weight);
    out->UseAsRows(out->Vector(absl::StrCat("bias.", i), c.n_embd, Initializer::kZeros));
  }
}

using Json = nlohmann::ordered_json;

// Reads fields of a JSON object; the first error stays.
class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  void Integer(const char* name, int* value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    const int64_t limit = std::numeric_limits<int>::max();
    const bool fits = field->is_number_integer() &&
                      (!field->is_number_unsigned() || field->get<uint64_t>() <= uint64_t(limit)) &&
                      field->get<int64_t>() >= -limit && field->get<int64_t>() <= limit;
    if (!fits) return Fail(name, "a whole number of 32 bits", *field);
    *value = static_cast<int>(field->get<int64_t>());
  }
  void RequiredInteger(const char* name, int* value) {
    if (Find(name) == nullptr) return Missing(name);
    Integer(name, value);
  }
  void Real(const char* name, double* value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number()) return Fail(name, "a number", *field);
    *value = field->get<double>();
  }
  void Flag(const char* name, bool* value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) return Fail(name, "true or false", *field);
    *value = field->get<bool>();
  }
  // The only value that our programs compute; absent means the same.
  void Only(const char* name, const Json& supported) {
    const Json* field = Find(name);
    if (field != nullptr && *field != supported) {
      Fail(name, absl::StrCat(supported.dump(), " (nothing else is computed)"), *field);
    }
  }
  void Missing(const char* name) {
    if (!status_.ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat("model.path: config.json has no field ", name));
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  void Fail(const char* name, absl::string_view expected, const Json& found) {
    if (!status_.ok()) return;
    const std::string shown =
        found.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80);
    status_ = absl::InvalidArgumentError(absl::StrCat("model.path: config.json field ", name,
                                                      ": expected ", expected, ", found ", shown));
  }

  const Json& object_;
  absl::Status status_;
};

}  // namespace

absl::Status BuildLayout(double weight_decay, JobSpec* spec) {
  EPS_RETURN_IF_ERROR(ValidateModel(spec->model));
  spec->groups = {{"decay", weight_decay}, {"no_decay", 0.0}};
  spec->tensors.clear();
  spec->stages.clear();
  LayoutWriter writer(spec);
  if (spec->model.type == ModelType::kGpt2) {
    BuildGpt2(spec->model.gpt2, &writer);
  } else {
    BuildSynthetic(spec->model.synthetic, &writer);
  }
  return absl::OkStatus();
}

absl::StatusOr<Gpt2Config> ParseGpt2Config(absl::string_view json) {
  const Json object = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError("model.path: config.json is not a JSON object");
  }
  FieldReader reader(object);
  if (object.find("model_type") == object.end()) reader.Missing("model_type");
  reader.Only("model_type", "gpt2");
  // What Hugging Face takes for fields that are absent; the shape must be there.
  Gpt2Config config;
  config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1;
  reader.RequiredInteger("n_layer", &config.n_layer);
  reader.RequiredInteger("n_head", &config.n_head);
  reader.RequiredInteger("n_embd", &config.n_embd);
  reader.RequiredInteger("n_positions", &config.n_positions);
  reader.RequiredInteger("vocab_size", &config.vocab_size);
  reader.Integer("n_inner", &config.n_inner);
  reader.Flag("tie_word_embeddings", &config.tie_word_embeddings);
  reader.Real("resid_pdrop", &config.resid_pdrop);
  reader.Real("embd_pdrop", &config.embd_pdrop);
  reader.Real("attn_pdrop", &config.attn_pdrop);
  reader.Real("layer_norm_epsilon", &config.layer_norm_epsilon);
  reader.Real("initializer_range", &config.initializer_range);
  reader.Only("activation_function", "gelu_new");
  reader.Only("scale_attn_weights", true);
  reader.Only("scale_attn_by_inverse_layer_idx", false);
  reader.Only("reorder_and_upcast_attn", false);
  reader.Only("add_cross_attention", false);
  EPS_RETURN_IF_ERROR(reader.status());
  ModelSpec model;
  model.gpt2 = config;
  EPS_RETURN_IF_ERROR(ValidateModel(model));
  return config;
}

std::string Gpt2ConfigToJson(const Gpt2Config& config) {
  Json object;
  object["architectures"] = {"GPT2LMHeadModel"};
  object["model_type"] = "gpt2";
  object["activation_function"] = "gelu_new";
  object["n_layer"] = config.n_layer;
  object["n_head"] = config.n_head;
  object["n_embd"] = config.n_embd;
  object["n_inner"] = config.n_inner > 0 ? Json(config.n_inner) : Json(nullptr);
  object["n_positions"] = config.n_positions;
  object["n_ctx"] = config.n_positions;
  object["vocab_size"] = config.vocab_size;
  object["tie_word_embeddings"] = config.tie_word_embeddings;
  object["resid_pdrop"] = config.resid_pdrop;
  object["embd_pdrop"] = config.embd_pdrop;
  object["attn_pdrop"] = config.attn_pdrop;
  object["layer_norm_epsilon"] = config.layer_norm_epsilon;
  object["initializer_range"] = config.initializer_range;
  object["torch_dtype"] = "float32";
  return object.dump(2) + "\n";
}

}  // namespace eps
