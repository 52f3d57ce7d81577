#include "absl/strings/str_cat.h"
#include "base/job/models/model_family.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr char kHfType[] = "eps-synthetic";
constexpr double kInitialStd = 0.02;
constexpr uint32_t kDefaultSeqLen = 32;

// Stage i uses tensor "layer.i" [n_embd, n_embd] and "bias.i" [n_embd]; if tied, the last stage
// uses "layer.0" instead of one of its own. The model reads no data.
class Synthetic final : public ModelFamily {
 public:
  const char* hf_type() const override { return kHfType; }

  void Keys(ModelKeyVisitor* visitor, ModelSpec* model) const override {
    SyntheticConfig* const c = &model->synthetic;
    visitor->Key("model.n_layer", &c->n_layer, Range(1, kMaxStages));
    visitor->Key("model.n_embd", &c->n_embd, Range(1, 1 << 20));
    visitor->Key("model.tied", &c->tied);
  }

  absl::Status CheckTogether(const ModelSpec&) const override { return absl::OkStatus(); }

  void Layout(const ModelSpec& model, LayoutWriter* out) const override {
    const SyntheticConfig& c = model.synthetic;
    TensorId first;
    for (int i = 0; i < c.n_layer; ++i) {
      const std::string name = absl::StrCat("layer.", i);
      out->Stage(name);
      const bool shares = c.tied && i > 0 && i == c.n_layer - 1;
      const TensorId weight = shares ? first : out->Matrix(name, c.n_embd, c.n_embd, kInitialStd);
      if (i == 0) first = weight;
      out->UseAsInOut(weight);
      out->UseAsRows(out->Vector(absl::StrCat("bias.", i), c.n_embd, Initializer::kZeros));
    }
  }

  uint32_t vocabulary(const ModelSpec&) const override { return 0; }
  uint32_t max_seq_len(const ModelSpec&) const override { return 0; }
  uint32_t default_seq_len(const ModelSpec&) const override { return kDefaultSeqLen; }
  uint32_t width(const ModelSpec& model) const override {
    return static_cast<uint32_t>(model.synthetic.n_embd);
  }
  double ForwardFlops(const ModelSpec&, const StageShape& shape) const override {
    return 2 * static_cast<double>(shape.elements);  // one vector through one matrix
  }
  double ActivationBytes(const ModelSpec&, const StageShape&) const override { return 0; }

  absl::StatusOr<ModelSpec> Parse(absl::string_view json,
                                  const std::string& origin) const override {
    const nlohmann::json object =
        nlohmann::json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": expected a JSON object"));
    }
    ModelSpec model;
    model.type = ModelType::kSynthetic;
    SyntheticConfig* const c = &model.synthetic;
    for (const auto& [name, value] : object.items()) {
      if (name == "model_type") continue;
      if (name == "tied" && value.is_boolean()) {
        c->tied = value.get<bool>();
      } else if ((name == "n_layer" || name == "n_embd") && value.is_number_unsigned() &&
                 value.get<uint64_t>() <= kMaxTensorCols) {
        (name == "n_layer" ? c->n_layer : c->n_embd) = value.get<int>();
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat(origin, ": ", name, ": ", kHfType,
                         " has n_layer and n_embd (positive integers) and tied (true or false)"));
      }
    }
    return model;
  }

  std::string ToJson(const ModelSpec& model) const override {
    nlohmann::ordered_json json;
    json["model_type"] = kHfType;
    json["n_layer"] = model.synthetic.n_layer;
    json["n_embd"] = model.synthetic.n_embd;
    json["tied"] = model.synthetic.tied;
    return json.dump(2) + "\n";
  }
};

const FamilyRegistration kSynthetic(ModelType::kSynthetic, new Synthetic());

}  // namespace
}  // namespace eps
