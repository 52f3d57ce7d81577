#ifndef EPS_OPTIMIZER_RULES_CONVERSIONS_H_
#define EPS_OPTIMIZER_RULES_CONVERSIONS_H_

// How the state of one optimizer becomes that of another, so that the other goes on from it.

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/job/optimizers.h"

namespace eps {

// The values of a state field, made from the field at the same place of the old state.
struct FieldConversion {
  enum class Of { kSame, kSquareRoot, kSquare, kZero } of = Of::kSame;
  float scale = 1;  // of kSame

  void Apply(absl::Span<float> values) const;
};

// The conversion of a whole state, and of the learning rate.
struct StateConversion {
  std::vector<FieldConversion> fields;  // by field of the new optimizer
  double lr_scale = 1;
};

// Returns how the new optimizer takes over the state; nullopt if that state means something else:
//
//   adam, adamw                      equal
//   adagrad, adagrad_smartinfinity   equal
//   adam or adamw, adamw_sqrtv       the square root of the second moment, or its square
//   sgd, sgd_smartinfinity           the buffer times (1 - momentum) / (1 - dampening), or divided
//                                    by it; the rate changes by the inverse, so that a step is the
//                                    same. Not with Nesterov's momentum.
std::optional<StateConversion> FindConversion(const OptimizerSpec& from, const OptimizerSpec& to);

// Returns a state of zeros.
StateConversion ZeroState(const OptimizerSpec& to);

}  // namespace eps

#endif  // EPS_OPTIMIZER_RULES_CONVERSIONS_H_
