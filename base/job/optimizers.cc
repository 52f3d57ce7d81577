#include "base/job/optimizers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr OptimizerNumber kBetaNumbers[] = {{"optimizer.beta1", &OptimizerSettings::beta1},
                                            {"optimizer.beta2", &OptimizerSettings::beta2}};
constexpr OptimizerParameter kBetas = {"optimizer.betas", "decay of the first and second moment.",
                                       kBelowOne, kBetaNumbers};

constexpr OptimizerNumber kEpsNumber[] = {{"optimizer.eps", &OptimizerSettings::eps}};
// Without it the update of a weight that never had a gradient would be 0/0.
constexpr OptimizerParameter kEps = {"optimizer.eps", "added to the denominator of the update.",
                                     kPositive, kEpsNumber};

constexpr OptimizerNumber kMomentumNumber[] = {
    {"optimizer.momentum", &OptimizerSettings::momentum}};
constexpr OptimizerParameter kMomentum = {"optimizer.momentum",
                                          "decay of the momentum buffer; 0 keeps none.", kBelowOne,
                                          kMomentumNumber};

constexpr const OptimizerParameter* kAllParameters[] = {&kBetas, &kEps, &kMomentum};

constexpr const OptimizerParameter* kAdamWParameters[] = {&kBetas, &kEps};
constexpr const char* kAdamWFields[] = {"exp_avg", "exp_avg_sq"};
absl::Span<const char* const> FieldsOfAdamW(const OptimizerSpec&) { return kAdamWFields; }

constexpr const OptimizerParameter* kSgdParameters[] = {&kMomentum};
constexpr const char* kSgdFields[] = {"momentum_buffer"};
absl::Span<const char* const> FieldsOfSgd(const OptimizerSpec& spec) {
  if (spec.momentum == 0) return {};
  return kSgdFields;
}

constexpr OptimizerRow kRows[] = {
    {OptimizerName::kAdamW, kAdamWParameters, "decoupled from the gradient", FieldsOfAdamW},
    {OptimizerName::kSgd, kSgdParameters, "part of the gradient", FieldsOfSgd},
};

}  // namespace

absl::Span<const OptimizerRow> Optimizers() { return kRows; }

const OptimizerRow& RowOf(OptimizerName name) { return kRows[static_cast<size_t>(name)]; }

absl::Span<const char* const> StateFields(const OptimizerSpec& spec) {
  return RowOf(spec.name).fields(spec);
}

absl::Span<const OptimizerParameter* const> OptimizerParameters() { return kAllParameters; }

bool Has(OptimizerName name, const OptimizerParameter& parameter) {
  const absl::Span<const OptimizerParameter* const> own = RowOf(name).parameters;
  return std::find(own.begin(), own.end(), &parameter) != own.end();
}

std::vector<std::string> OwnersOf(const OptimizerParameter& parameter) {
  std::vector<std::string> names;
  for (const OptimizerRow& row : Optimizers()) {
    if (Has(row.name, parameter)) names.emplace_back(NameOf(row.name));
  }
  return names;
}

std::string WeightDecayHelp() {
  std::string help;
  for (const OptimizerRow& row : Optimizers()) {
    absl::StrAppend(&help, help.empty() ? "" : "; ", NameOf(row.name), ": ", row.weight_decay);
  }
  return help;
}

absl::Status ValidateOptimizer(const OptimizerSpec& spec) {
  const OptimizerSpec defaults;
  for (const OptimizerParameter* parameter : OptimizerParameters()) {
    for (const OptimizerNumber& number : parameter->numbers) {
      const double value = spec.*number.value;
      if (!Has(spec.name, *parameter) && value != defaults.*number.value) {
        return Refuse(number.line, "expected ", defaults.*number.value, ", ", NameOf(spec.name),
                      " has none, found ", value);
      }
      EPS_RETURN_IF_ERROR(CheckRule(number.line, value, parameter->range));
    }
  }
  return absl::OkStatus();
}

}  // namespace eps
