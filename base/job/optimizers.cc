#include "base/job/optimizers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// ---- parameters

constexpr OptimizerNumber kBetaNumbers[] = {
    {"optimizer.beta1", &OptimizerSettings::beta1, &OptimizerChoices::beta1},
    {"optimizer.beta2", &OptimizerSettings::beta2, &OptimizerChoices::beta2}};
constexpr OptimizerParameter kBetas = {
    "optimizer.betas",
    "decay of the first and second moment; lion has one, and decays it by the first for the step "
    "and by the second for the next update.",
    kBelowOne, kBetaNumbers};

constexpr OptimizerNumber kEpsNumber[] = {
    {"optimizer.eps", &OptimizerSettings::eps, &OptimizerChoices::eps}};
// Without it the update of a weight that never had a gradient would be 0/0.
constexpr OptimizerParameter kEps = {"optimizer.eps", "added to the denominator of the update.",
                                     kPositive, kEpsNumber};

constexpr OptimizerNumber kMomentumNumber[] = {
    {"optimizer.momentum", &OptimizerSettings::momentum, &OptimizerChoices::momentum}};
constexpr OptimizerParameter kMomentum = {"optimizer.momentum",
                                          "decay of the momentum buffer; 0 keeps none.", kBelowOne,
                                          kMomentumNumber};

constexpr OptimizerNumber kDampeningNumber[] = {
    {"optimizer.dampening", &OptimizerSettings::dampening, &OptimizerChoices::dampening}};
constexpr OptimizerParameter kDampening = {
    "optimizer.dampening",
    "the gradient enters the momentum buffer times 1 - dampening, from the second update on.",
    kBelowOne,
    kDampeningNumber,
    nullptr,
    OptimizerLine::kUnlessUsual};

constexpr OptimizerFlag kNesterovFlag = {"optimizer.nesterov", &OptimizerSettings::nesterov,
                                         &OptimizerChoices::nesterov};
constexpr OptimizerParameter kNesterov = {
    "optimizer.nesterov",
    "Nesterov's momentum; needs a momentum, and no dampening.",
    kBelowOne,
    {},
    &kNesterovFlag,
    OptimizerLine::kUnlessUsual};

constexpr OptimizerNumber kLrDecayNumber[] = {
    {"optimizer.lr_decay", &OptimizerSettings::lr_decay, &OptimizerChoices::lr_decay}};
constexpr OptimizerParameter kLrDecay = {
    "optimizer.lr_decay",
    "update t divides the learning rate by 1 + (t - 1) * lr_decay.",
    Reals(0.0, kMaxFactor),
    kLrDecayNumber,
    nullptr,
    OptimizerLine::kUnlessUsual};

constexpr OptimizerFlag kAlwaysAdaptFlag = {
    "optimizer.always_adapt", &OptimizerSettings::always_adapt, &OptimizerChoices::always_adapt};
constexpr OptimizerParameter kAlwaysAdapt = {
    "optimizer.always_adapt",
    "scales the steps of all tensors by their trust ratios, also of tensors without weight decay.",
    kBelowOne,
    {},
    &kAlwaysAdaptFlag};

constexpr const OptimizerParameter* kAllParameters[] = {
    &kBetas, &kEps, &kMomentum, &kDampening, &kNesterov, &kLrDecay, &kAlwaysAdapt};

// ---- parts of rows

constexpr char kDecoupled[] = "decoupled from the gradient";
constexpr char kCoupled[] = "part of the gradient";

constexpr OptimizerSettings Usual(OptimizerName name) {
  OptimizerSettings settings;
  settings.name = name;
  return settings;
}

constexpr const OptimizerParameter* kAdamParameters[] = {&kBetas, &kEps};
constexpr const char* kAdamFields[] = {"exp_avg", "exp_avg_sq"};
absl::Span<const char* const> FieldsOfAdam(const OptimizerSpec&) { return kAdamFields; }

constexpr const char* kSqrtVFields[] = {"exp_avg", "exp_avg_sq_sqrt"};
absl::Span<const char* const> FieldsOfSqrtV(const OptimizerSpec&) { return kSqrtVFields; }

constexpr const OptimizerParameter* kSgdParameters[] = {&kMomentum, &kDampening, &kNesterov};
constexpr const OptimizerParameter* kPlainSgdParameters[] = {&kMomentum};
constexpr const char* kSgdFields[] = {"momentum_buffer"};
absl::Span<const char* const> FieldsOfSgd(const OptimizerSpec& spec) {
  if (spec.momentum == 0) return {};
  return kSgdFields;
}
absl::Status CheckSgd(const OptimizerSpec& spec) {
  if (!spec.nesterov || (spec.momentum > 0 && spec.dampening == 0)) return absl::OkStatus();
  return Refuse("optimizer.nesterov",
                "expected optimizer.momentum above 0 and optimizer.dampening 0, found ",
                spec.momentum, " and ", spec.dampening);
}

constexpr OptimizerSettings UsualOfAdagrad(OptimizerName name) {
  OptimizerSettings settings = Usual(name);
  settings.eps = 1e-10;
  return settings;
}
constexpr const OptimizerParameter* kAdagradParameters[] = {&kEps, &kLrDecay};
constexpr const OptimizerParameter* kPlainAdagradParameters[] = {&kEps};
constexpr const char* kAdagradFields[] = {"sum"};
absl::Span<const char* const> FieldsOfAdagrad(const OptimizerSpec&) { return kAdagradFields; }

constexpr OptimizerSettings UsualOfLion() {
  OptimizerSettings settings = Usual(OptimizerName::kLion);
  settings.beta2 = 0.99;
  return settings;
}
constexpr const OptimizerParameter* kLionParameters[] = {&kBetas};
constexpr const char* kLionFields[] = {"exp_avg"};
absl::Span<const char* const> FieldsOfLion(const OptimizerSpec&) { return kLionFields; }

constexpr OptimizerSettings UsualOfLamb() {
  OptimizerSettings settings = Usual(OptimizerName::kLamb);
  settings.eps = 1e-6;
  return settings;
}
constexpr const OptimizerParameter* kLambParameters[] = {&kBetas, &kEps, &kAlwaysAdapt};

absl::Span<const char* const> NoFields(const OptimizerSpec&) { return {}; }

constexpr OptimizerRow kRows[] = {
    {OptimizerName::kAdamW, Usual(OptimizerName::kAdamW), kAdamParameters, kDecoupled,
     FieldsOfAdam},
    {OptimizerName::kSgd, Usual(OptimizerName::kSgd), kSgdParameters, kCoupled, FieldsOfSgd,
     CheckSgd},
    {OptimizerName::kAdam, Usual(OptimizerName::kAdam), kAdamParameters, kCoupled, FieldsOfAdam},
    {OptimizerName::kAdagrad, UsualOfAdagrad(OptimizerName::kAdagrad), kAdagradParameters, kCoupled,
     FieldsOfAdagrad},
    {OptimizerName::kLion, UsualOfLion(), kLionParameters, kDecoupled, FieldsOfLion},
    {OptimizerName::kAdamWSqrtV, Usual(OptimizerName::kAdamWSqrtV), kAdamParameters, kDecoupled,
     FieldsOfSqrtV},
    {OptimizerName::kSgdSmartInfinity, Usual(OptimizerName::kSgdSmartInfinity), kPlainSgdParameters,
     kCoupled, FieldsOfSgd},
    {OptimizerName::kAdagradSmartInfinity, UsualOfAdagrad(OptimizerName::kAdagradSmartInfinity),
     kPlainAdagradParameters, "part of the accumulated square, not of the step", FieldsOfAdagrad},
    {OptimizerName::kLamb, UsualOfLamb(), kLambParameters, "part of the step, and of its norm",
     FieldsOfAdam, nullptr, /*adapts=*/true},
    {OptimizerName::kPlugin, Usual(OptimizerName::kPlugin), {}, "as the object does", NoFields},
};
constexpr size_t kBuiltIn = std::size(kRows) - 1;

// ---- checks

// Calls body(value) for each value of a parameter, an OptimizerNumber or OptimizerFlag.
template <class Body>
void ForEachValue(const OptimizerParameter& parameter, Body body) {
  for (const OptimizerNumber& number : parameter.numbers) body(number);
  if (parameter.flag_or_null != nullptr) body(*parameter.flag_or_null);
}

// The refusal of a parameter that `name` does not have.
absl::Status RefuseForeign(OptimizerName name, const OptimizerParameter& parameter) {
  const std::string owners = absl::StrJoin(OwnersOf(parameter), " or ");
  std::vector<std::string> own;
  for (const OptimizerParameter* each : RowOf(name).parameters) own.emplace_back(each->key);
  if (own.empty()) own.emplace_back("no such settings");
  return absl::InvalidArgumentError(absl::StrCat(
      parameter.key, " is a setting of optimizer.name=", owners, ", ", NameOf(name), " has ",
      absl::StrJoin(own, ", "), "; leave it out, or set optimizer.name=", owners));
}

}  // namespace

absl::Span<const OptimizerRow> Optimizers() { return absl::MakeConstSpan(kRows, kBuiltIn); }

const OptimizerRow& RowOf(OptimizerName name) { return kRows[static_cast<size_t>(name)]; }

const OptimizerSettings& DefaultsOf(OptimizerName name) { return RowOf(name).defaults; }

std::vector<std::string> StateFields(const OptimizerSpec& spec) {
  if (spec.name == OptimizerName::kPlugin) return spec.plugin.fields;
  const absl::Span<const char* const> fields = RowOf(spec.name).fields(spec);
  return {fields.begin(), fields.end()};
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
  std::vector<std::pair<absl::string_view, std::string>> ways;  // in the order of the rows
  for (const OptimizerRow& row : Optimizers()) {
    const auto way = std::find_if(ways.begin(), ways.end(),
                                  [&](const auto& each) { return each.first == row.weight_decay; });
    if (way != ways.end()) {
      absl::StrAppend(&way->second, ", ", NameOf(row.name));
    } else {
      ways.emplace_back(row.weight_decay, NameOf(row.name));
    }
  }
  return absl::StrJoin(ways, "; ", [](std::string* out, const auto& way) {
    absl::StrAppend(out, way.second, ": ", way.first);
  });
}

absl::StatusOr<OptimizerSettings> ResolveOptimizer(const OptimizerChoices& choices) {
  const OptimizerSettings usual;
  OptimizerSettings settings = DefaultsOf(choices.name);
  for (const OptimizerParameter* parameter : OptimizerParameters()) {
    const bool owned = Has(choices.name, *parameter);
    bool foreign = false;
    ForEachValue(*parameter, [&](const auto& value) {
      const auto& choice = choices.*value.choice;
      if (!choice.has_value()) return;
      if (owned) settings.*value.value = *choice;
      if (!owned && *choice != usual.*value.value) foreign = true;
    });
    if (foreign) return RefuseForeign(choices.name, *parameter);
  }
  return settings;
}

void KeepSettings(const OptimizerSettings& settings, OptimizerChoices* choices) {
  choices->name = settings.name;
  for (const OptimizerParameter* parameter : OptimizerParameters()) {
    const bool owned = Has(settings.name, *parameter);
    ForEachValue(*parameter, [&](const auto& value) {
      (choices->*value.choice).reset();
      if (owned) choices->*value.choice = settings.*value.value;
    });
  }
}

absl::Status ValidateOptimizer(const OptimizerSpec& spec) {
  const OptimizerSettings usual;
  for (const OptimizerParameter* parameter : OptimizerParameters()) {
    const bool owned = Has(spec.name, *parameter);
    absl::Status status;
    ForEachValue(*parameter, [&](const auto& value) {
      const auto found = spec.*value.value;
      if (!status.ok() || owned || found == usual.*value.value) return;
      status = Refuse(value.line, "expected ", usual.*value.value, ", ", NameOf(spec.name),
                      " has none, found ", found);
    });
    EPS_RETURN_IF_ERROR(status);
    for (const OptimizerNumber& number : parameter->numbers) {
      EPS_RETURN_IF_ERROR(CheckRule(number.line, spec.*number.value, parameter->range));
    }
  }
  if (spec.name == OptimizerName::kPlugin) return ValidatePlugin(spec.plugin);
  if (spec.plugin != PluginSpec()) {
    return Refuse("optimizer.plugin",
                  "the line is left out for optimizer.name = ", NameOf(spec.name));
  }
  const OptimizerRow& row = RowOf(spec.name);
  return row.check_or_null == nullptr ? absl::OkStatus() : row.check_or_null(spec);
}

}  // namespace eps
