#ifndef EPS_OPTIMIZER_RULES_ELEMENT_RULE_H_
#define EPS_OPTIMIZER_RULES_ELEMENT_RULE_H_

// Makes a rule from its formula: a rule whose result for an element depends on nothing but the
// numbers of the step and what that element has. A file of rules/ defines three functions and
// registers NewElementRule<code> with them.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/job/optimizers.h"
#include "base/numerics/flush_denormals.h"
#include "optimizer/update_rule.h"

namespace eps {

// The arguments of UpdateRule::Run that are not numbers.
struct RuleTile {
  size_t rows = 0;
  size_t cols = 0;
  const float* grad = nullptr;
  size_t grad_ld = 0;
  TileState state;
  bool more_follow = false;  // the next elements in memory are updated next
};

// The functions of a rule. `Scalars` holds the numbers of one update, each computed in double and
// rounded once. The loops run with denormals flushed and give the same bits.
template <class Scalars>
struct ElementCode {
  Scalars (*scalars)(const OptimizerSpec& spec, const StepScalars& step, const GroupScalars& group);
  void (*best)(const Scalars& scalars, const RuleTile& tile);
  void (*reference)(const Scalars& scalars, const RuleTile& tile);
};

// Runs a loop with the numbers of one step and group.
template <class Scalars>
class ElementUpdate final : public PreparedUpdate {
 public:
  using Loop = void (*)(const Scalars& scalars, const RuleTile& tile);

  ElementUpdate(const Scalars& scalars, Loop run) : scalars_(scalars), run_(run) {}

  void Run(size_t n, const float* grad, const TileState& state) const override {
    RuleTile tile = {1, n, grad, n, state, /*more_follow=*/true};
    tile.state.ld = n;
    run_(scalars_, tile);
  }
  absl::Span<const uint8_t> scalars() const override {
    return {reinterpret_cast<const uint8_t*>(&scalars_), sizeof(scalars_)};
  }

 private:
  const Scalars scalars_;
  const Loop run_;
};

// Runs one of the loops of `code`.
template <class Scalars>
class ElementRule final : public UpdateRule {
 public:
  ElementRule(const ElementCode<Scalars>& code, const OptimizerSpec& spec, Kernel kernel)
      : spec_(spec),
        scalars_(code.scalars),
        run_(kernel == Kernel::kReference ? code.reference : code.best) {}

  std::unique_ptr<const PreparedUpdate> Prepare(const StepScalars& step,
                                                const GroupScalars& group) const override {
    return std::make_unique<ElementUpdate<Scalars>>(scalars_(spec_, step, group), run_);
  }

  void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld, const StepScalars& step,
           const GroupScalars& group, const TileState& state) const override {
    const RuleTile tile = {rows, cols, grad, grad_ld, state, /*more_follow=*/false};
    const Scalars scalars = scalars_(spec_, step, group);
    // The mode is set outside of the indirect call: the compiler moves no arithmetic across it.
    ScopedFlushDenormals flush;
    run_(scalars, tile);
  }

 private:
  const OptimizerSpec spec_;
  decltype(ElementCode<Scalars>::scalars) const scalars_;
  decltype(ElementCode<Scalars>::best) const run_;
};

// A factory for RuleRegistration. `code` is an ElementCode.
template <const auto& code>
absl::StatusOr<std::unique_ptr<UpdateRule>> NewElementRule(const OptimizerSpec& spec,
                                                           Kernel kernel) {
  return std::make_unique<ElementRule<decltype(code.scalars({}, {}, {}))>>(code, spec, kernel);
}

// Calls element(gradient, index) for each element of a tile in turn; its weight and fields lie at
// that index of the arrays. For references.
template <class Element>
void ForEachElement(const RuleTile& tile, Element element) {
  for (size_t r = 0; r < tile.rows; ++r) {
    for (size_t c = 0; c < tile.cols; ++c) {
      element(tile.grad[r * tile.grad_ld + c], r * tile.state.ld + c);
    }
  }
}

}  // namespace eps

#endif  // EPS_OPTIMIZER_RULES_ELEMENT_RULE_H_
