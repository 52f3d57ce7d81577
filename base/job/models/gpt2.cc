#include "base/job/models/gpt2.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/ids.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr double kFp32 = 4;                 // bytes
constexpr char kPrefix[] = "transformer.";  // of all tensors but the head
constexpr char kEmbedding[] = "transformer.wte.weight";
constexpr char kHead[] = "lm_head.weight";

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

// Stage 0 "embedding" (wte, wpe), stages 1…n "h.0"… (ln_1, attn.c_attn, attn.c_proj, ln_2,
// mlp.c_fc, mlp.c_proj; weights [in, out] as Hugging Face's Conv1D), stage n+1 "head" (ln_f, and
// wte again if tied, else lm_head.weight). Initial values are Hugging Face's: normal(0,
// initializer_range), residual projections divided by sqrt(2 n_layer), biases 0, norms 1.
class Gpt2 final : public ModelFamily {
 public:
  const char* hf_type() const override { return "gpt2"; }

  void Keys(ModelKeyVisitor* visitor, ModelSpec* model) const override {
    Gpt2Config* const c = &model->gpt2;
    visitor->Key("model.n_layer", &c->n_layer, Range(1, kMaxStages - 2));
    visitor->Key("model.n_head", &c->n_head, Range(1, 1 << 16));
    visitor->Key("model.n_embd", &c->n_embd, Range(1, 1 << 20));
    visitor->Key("model.n_inner", &c->n_inner, Range(0, 1 << 22));
    visitor->Key("model.n_positions", &c->n_positions, Range(1, 1 << 24));
    visitor->Key("model.vocab_size", &c->vocab_size, Range(1, 1 << 24));
    visitor->Key("model.tie_word_embeddings", &c->tie_word_embeddings);
    visitor->Key("model.resid_pdrop", &c->resid_pdrop, kBelowOne);
    visitor->Key("model.embd_pdrop", &c->embd_pdrop, kBelowOne);
    visitor->Key("model.attn_pdrop", &c->attn_pdrop, kBelowOne);
    visitor->Key("model.layer_norm_epsilon", &c->layer_norm_epsilon, kPositive);
    visitor->Key("model.initializer_range", &c->initializer_range, Reals(0.0, 1e6));
  }

  absl::Status CheckTogether(const ModelSpec& model) const override {
    const Gpt2Config& c = model.gpt2;
    if (c.n_embd % c.n_head == 0) return absl::OkStatus();
    return Refuse("model.n_embd", "expected a multiple of model.n_head = ", c.n_head, ", found ",
                  c.n_embd);
  }

  void Layout(const ModelSpec& model, LayoutWriter* out) const override {
    const Gpt2Config& c = model.gpt2;
    const int64_t width = c.n_embd;
    const int64_t inner = c.n_inner > 0 ? c.n_inner : 4 * width;
    const double std = c.initializer_range;
    const double residual_std = std / std::sqrt(2.0 * c.n_layer);

    out->Stage("embedding");
    const TensorId wte = out->Matrix(kEmbedding, c.vocab_size, width, std);
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
    out->UseAsOutIn(c.tie_word_embeddings ? wte : out->Matrix(kHead, c.vocab_size, width, std));
  }

  // The gradients of a lookup follow from the ids and the gradient of its output alone.
  bool BackwardNeedsWeights(const ModelSpec& /*model*/, size_t stage) const override {
    return stage > 0;
  }

  uint32_t vocabulary(const ModelSpec& model) const override {
    return static_cast<uint32_t>(model.gpt2.vocab_size);
  }
  uint32_t max_seq_len(const ModelSpec& model) const override {
    return static_cast<uint32_t>(model.gpt2.n_positions);
  }
  uint32_t default_seq_len(const ModelSpec& model) const override { return max_seq_len(model); }
  uint32_t width(const ModelSpec& model) const override {
    return static_cast<uint32_t>(model.gpt2.n_embd);
  }

  double ForwardFlops(const ModelSpec& model, const StageShape& shape) const override {
    const Gpt2Config& c = model.gpt2;
    const double width = c.n_embd;
    if (shape.stage == 0) return 0;  // the embedding has no matrix product
    if (shape.stage + 1 == shape.stages) {
      return HeadForwardFlops(shape.tokens, width, c.vocab_size);
    }
    return BlockForwardFlops(shape.tokens, width, c.n_inner == 0 ? 4 * width : c.n_inner);
  }

  double ActivationBytes(const ModelSpec& model, const StageShape& shape) const override {
    const Gpt2Config& c = model.gpt2;
    if (shape.stage == 0) return 0;
    if (shape.stage + 1 == shape.stages) return HeadActivationBytes(shape.tokens, c.vocab_size);
    return BlockActivationBytes(shape.tokens, c.n_embd, c.n_head);
  }

  absl::StatusOr<ModelSpec> Parse(absl::string_view json,
                                  const std::string& origin) const override {
    const absl::StatusOr<Gpt2Config> config = ParseGpt2Config(json);
    if (!config.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": ", config.status().message()));
    }
    ModelSpec model;
    model.gpt2 = *config;
    return model;
  }

  std::string ToJson(const ModelSpec& model) const override { return Gpt2ConfigToJson(model.gpt2); }

  // The causal masks, which transformers saved with the weights until version 4.
  bool IsObsolete(absl::string_view tensor) const override {
    absl::ConsumePrefix(&tensor, kPrefix);
    const std::vector<absl::string_view> parts = absl::StrSplit(tensor, '.');
    uint32_t layer = 0;
    return parts.size() == 4 && parts[0] == "h" && absl::SimpleAtoi(parts[1], &layer) &&
           parts[2] == "attn" && (parts[3] == "bias" || parts[3] == "masked_bias");
  }
  absl::string_view EqualTo(const ModelSpec& model, absl::string_view tensor) const override {
    return model.gpt2.tie_word_embeddings && tensor == kHead ? kEmbedding : "";
  }
  absl::string_view optional_prefix() const override { return kPrefix; }
  absl::string_view shape_note() const override {
    return "GPT-2's matrices are stored as [in, out]";
  }
};

const FamilyRegistration kGpt2(ModelType::kGpt2, new Gpt2());

}  // namespace

bool HasEveryPrecision(const ModelSpec& model) { return model.type == ModelType::kGpt2; }

absl::StatusOr<Gpt2Config> ParseGpt2Config(absl::string_view json) {
  const Json object = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError("model.path: config.json is not a JSON object");
  }
  FieldReader reader(object);
  if (object.find("model_type") == object.end()) reader.Missing("model_type");
  reader.Only("model_type", "gpt2");
  // Hugging Face's defaults for fields that are absent; the shape must be there.
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

double BlockForwardFlops(double tokens, double width, double inner) {
  return 4 * tokens * width * inner + 8 * tokens * width * width + 4 * tokens * tokens * width;
}

double HeadForwardFlops(double tokens, double width, double vocabulary) {
  return 2 * tokens * width * vocabulary;
}

double BlockActivationBytes(double tokens, double width, double heads) {
  constexpr double kMatrices = 17;
  constexpr double kScores = 2.5;
  return kFp32 * tokens * (kMatrices * width + kScores * heads * tokens);
}

double HeadActivationBytes(double tokens, double vocabulary) {
  constexpr double kCopies = 3;
  return kFp32 * kCopies * tokens * vocabulary;
}

}  // namespace eps
