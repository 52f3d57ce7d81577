#include "optimizer/update_rule.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/numerics/flush_denormals.h"
#include "optimizer/kernels.h"

namespace eps {
namespace {

// By OptimizerName; null without a rule.
using Factories = std::array<RuleRegistration::Factory, kNames<OptimizerName>.size()>;

// Complete before main: registrations are static objects of files that are always linked.
Factories& RegisteredRules() {
  static Factories factories{};
  return factories;
}

}  // namespace

RuleRegistration::RuleRegistration(OptimizerName name, Factory factory) {
  RegisteredRules()[static_cast<size_t>(name)] = factory;
}

absl::StatusOr<std::unique_ptr<UpdateRule>> NewUpdateRule(const OptimizerSpec& spec,
                                                          Kernel kernel) {
  const size_t index = static_cast<size_t>(spec.name);
  if (index < RegisteredRules().size() && RegisteredRules()[index] != nullptr) {
    return RegisteredRules()[index](spec, kernel);
  }
  return absl::UnimplementedError(absl::StrCat("optimizer.name: there is no optimizer number ",
                                               index, "; known are ",
                                               absl::StrJoin(NamesOf<OptimizerName>(), " and ")));
}

void SquareSum::Add(const float* x, uint32_t rows, uint32_t cols, size_t ld, float scale) {
  static_assert(kSquareLanes == std::tuple_size_v<decltype(lanes_)>);
  ScopedFlushDenormals flush;
  AddSquares(x, rows, cols, ld, scale, lanes_.data());
}

double SquareSum::Fold() const {
  std::array<double, kSquareLanes> sums = lanes_;
  for (size_t width = kSquareLanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

}  // namespace eps
