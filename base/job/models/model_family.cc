#include "base/job/models/model_family.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using Families = std::array<const ModelFamily*, kNames<ModelType>.size()>;

// In the order of ModelType. Complete before main: registrations are static objects of files that
// are always linked.
Families& RegisteredFamilies() {
  static Families families{};
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
  const absl::Status& status() const { return checker_.status(); }

 private:
  RuleChecker checker_;
};

}  // namespace

const ModelFamily& FamilyOf(ModelType type) {
  return *RegisteredFamilies()[static_cast<size_t>(type)];
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
  for (const ModelFamily* const family : RegisteredFamilies()) {
    if (parsed.contains("model_type") && parsed["model_type"] == family->hf_type()) {
      return family->Parse(json, origin);
    }
  }
  return FamilyOf(ModelType()).Parse(json, origin);  // which refuses the type
}

std::string ModelToJson(const ModelSpec& model) { return FamilyOf(model.type).ToJson(model); }

}  // namespace eps
