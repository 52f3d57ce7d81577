#include "base/job/models/model_family.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/job/models/json_fields.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using FamilyArray = std::array<const ModelFamily*, kNames<ModelType>.size()>;

// In the order of ModelType. Complete before main: registrations are static objects of files that
// are always linked.
FamilyArray& RegisteredFamilies() {
  static FamilyArray families{};
  return families;
}

class ModelKeyChecker : public ModelKeyVisitor {
 public:
  void Key(absl::string_view key, int* value, const Range& rule) override {
    checker_.Key(key, value, rule, "");
  }
  void Key(absl::string_view key, double* value, const Reals& rule) override {
    checker_.Key(key, value, rule, "");
  }
  void Key(absl::string_view, bool*) override {}
  void Key(absl::string_view key, std::shared_ptr<const ModelProgram>* value) override {
    if (*value == nullptr) missing_ = Refuse(key, "is missing");
  }
  const absl::Status& status() const { return missing_.ok() ? checker_.status() : missing_; }

 private:
  RuleChecker checker_;
  absl::Status missing_;
};

}  // namespace

const ModelFamily& FamilyOf(ModelType type) {
  return *RegisteredFamilies()[static_cast<size_t>(type)];
}

absl::Span<const ModelFamily* const> Families() { return RegisteredFamilies(); }

uint64_t FileTensor::elements() const {
  uint64_t elements = 1;
  for (const uint64_t size : shape) elements *= size;
  return elements;
}

std::vector<FileTensor> AsLaidOut(const TensorSpec& tensor) {
  FileTensor whole = {tensor.name, {tensor.cols}, /*is_new=*/false};
  if (tensor.rank == 2) whole.shape.insert(whole.shape.begin(), tensor.rows);
  return {whole};
}

std::vector<FileTensor> ModelFamily::InFiles(const ModelSpec&, const TensorSpec& spec,
                                             size_t) const {
  return AsLaidOut(spec);
}

std::vector<FilePiece> PiecesOf(const std::vector<FileTensor>& tensors, uint64_t first,
                                size_t count) {
  std::vector<FilePiece> pieces;
  uint64_t begin = 0;  // of the tensor in the file, among all elements
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t end = begin + tensors[i].elements();
    const uint64_t from = std::max(first, begin);
    const uint64_t to = std::min(first + count, end);
    if (from < to) pieces.push_back({i, from - begin, from - first, to - from});
    begin = end;
  }
  return pieces;
}

FamilyRegistration::FamilyRegistration(ModelType type, const ModelFamily* family) {
  RegisteredFamilies()[static_cast<size_t>(type)] = family;
}

absl::Status ValidateModel(const ModelSpec& model) {
  ModelSpec copy = model;
  ModelKeyChecker checker;
  FamilyOf(model.type).Keys(&checker, &copy);
  EPS_RETURN_IF_ERROR(checker.status());
  return FamilyOf(model.type).CheckTogether(model);
}

void SetBackwardNeeds(const ModelSpec& model, std::vector<StageSpec>* stages) {
  for (size_t s = 0; s < stages->size(); ++s) {
    (*stages)[s].backward_needs_weights = FamilyOf(model.type).BackwardNeedsWeights(model, s);
  }
}

absl::StatusOr<ModelSpec> ParseModel(absl::string_view json, const std::string& origin) {
  const nlohmann::json parsed =
      nlohmann::json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": expected a JSON object"));
  }
  const auto type = parsed.find("model_type");
  if (type == parsed.end() || !type->is_string()) {
    return FamilyOf(ModelType()).Parse(json, origin);  // which refuses it
  }
  for (const ModelFamily* const family : Families()) {
    if (*type == family->hf_type() && *type != "") return family->Parse(json, origin);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "model.path: ", origin, " has the model_type ", ShowJson(*type),
      ", which is not built in; eps train --out=DIR makes a program of it, and `eps model export ",
      "FOLDER --out=DIR` makes a folder with ", FamilyOf(ModelType::kProgram).file(),
      " for --model=DIR"));
}

std::string ModelToJson(const ModelSpec& model) { return FamilyOf(model.type).ToJson(model); }

}  // namespace eps
