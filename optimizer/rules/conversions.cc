#include "optimizer/rules/conversions.h"

#include <cmath>

namespace eps {
namespace {

using Name = OptimizerName;
using Of = FieldConversion::Of;

bool IsOf(Name name, Name a, Name b) { return name == a || name == b; }

// The step of torch's SGD is lr * b with b = m b + (1 - dampening) g, that of Smart-Infinity's the
// same with 1 - m in place of 1 - dampening. Nesterov's adds the gradient, which the other lacks.
std::optional<StateConversion> BetweenSgd(const OptimizerSpec& from, const OptimizerSpec& to) {
  if (from.momentum == 0) return StateConversion();  // and so has the other: no state
  if (from.nesterov) return std::nullopt;
  const auto share = [](const OptimizerSpec& sgd) {
    return 1 - (sgd.name == Name::kSgd ? sgd.dampening : sgd.momentum);
  };
  const double scale = share(to) / share(from);
  return StateConversion{{{Of::kSame, static_cast<float>(scale)}}, 1 / scale};
}

}  // namespace

void FieldConversion::Apply(absl::Span<float> values) const {
  for (float& value : values) {
    switch (of) {
      case Of::kSame:
        value = value * scale;
        break;
      case Of::kSquareRoot:
        value = std::sqrt(value);
        break;
      case Of::kSquare:
        value = value * value;
        break;
      case Of::kZero:
        value = 0;
        break;
    }
  }
}

std::optional<StateConversion> FindConversion(const OptimizerSpec& from, const OptimizerSpec& to) {
  const auto among = [&](Name a, Name b) { return IsOf(from.name, a, b) && IsOf(to.name, a, b); };
  const auto has_moments = [](Name name) {
    return IsOf(name, Name::kAdam, Name::kAdamW) || name == Name::kLamb;
  };
  if (has_moments(from.name) && has_moments(to.name)) return StateConversion{{{}, {}}};
  if (among(Name::kAdagrad, Name::kAdagradSmartInfinity)) return StateConversion{{{}}};
  if (among(Name::kSgd, Name::kSgdSmartInfinity)) return BetweenSgd(from, to);
  if (to.name == Name::kAdamWSqrtV && has_moments(from.name)) {
    return StateConversion{{{}, {Of::kSquareRoot}}};
  }
  if (from.name == Name::kAdamWSqrtV && has_moments(to.name)) {
    return StateConversion{{{}, {Of::kSquare}}};
  }
  return std::nullopt;
}

StateConversion ZeroState(const OptimizerSpec& to) {
  StateConversion conversion;
  conversion.fields.resize(StateFields(to).size(), {Of::kZero});
  return conversion;
}

}  // namespace eps
