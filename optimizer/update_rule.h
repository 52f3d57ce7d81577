#ifndef EPS_OPTIMIZER_UPDATE_RULE_H_
#define EPS_OPTIMIZER_UPDATE_RULE_H_

// Update rules as pure functions over tiles. Everything here reads denormals as zero and flushes
// denormal results to zero, whatever the mode of the calling thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/optimizers.h"

namespace eps {

// The numbers that one update needs from the job's durable state; equal on all shards. The lead
// computes lr, bias corrections and clip factor once; all others receive them.
struct StepScalars {
  double lr = 0;
  double bias_correction1 = 1;  // 1 - beta1^t
  double bias_correction2 = 1;  // 1 - beta2^t
  // Multiplies the reduced gradient, once: 2^k / tokens * clip, rounded to float.
  float grad_scale = 1;
  uint64_t update = 0;  // t, 1-based
};

// The numbers of a tensor: those of its parameter group, and its trust ratio.
struct GroupScalars {
  double weight_decay = 0;
  double lr_multiplier = 1;  // of StepScalars::lr
  double trust_ratio = 1;    // scales the step, if the optimizer adapts
};

// A tile's weights and its state, the fields in the order of StateFields (base/job/optimizers.h),
// all with the same leading dimension.
struct TileState {
  float* weight = nullptr;
  std::array<float*, kMaxStateFields> field{};
  size_t ld = 0;
};

// An update rule with the numbers of one step and one parameter group. Immutable, thread-safe.
class PreparedUpdate {
 public:
  virtual ~PreparedUpdate() = default;
  // Updates `n` elements in place, with the bits of UpdateRule::Run; `state.ld` is not used. The
  // calling thread must hold ScopedFlushDenormals.
  virtual void Run(size_t n, const float* grad, const TileState& state) const = 0;
  // Returns the numbers as the struct of the rule's file has them, for devices that compute
  // elsewhere. Empty for a plug-in.
  virtual absl::Span<const uint8_t> scalars() const { return {}; }
};

// The steps of an optimizer that adapts, before a trust ratio scales them. Immutable, thread-safe.
class PreparedSteps {
 public:
  virtual ~PreparedSteps() = default;
  // Writes what learning rate and trust ratio would multiply in an update of `n` elements to
  // steps[0, n), which overlaps nothing else. Changes no state. `state.ld` is not used. The calling
  // thread must hold ScopedFlushDenormals.
  virtual void Run(size_t n, const float* grad, const TileState& state, float* steps) const = 0;
};

// How an optimizer updates weights and state from a gradient. Immutable, thread-safe.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Updates `rows` x `cols` elements in place from the reduced gradient grad[row * grad_ld + col],
  // which overlaps no array of the state. The result does not depend on how elements are grouped
  // into calls.
  virtual void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld,
                   const StepScalars& step, const GroupScalars& group,
                   const TileState& state) const = 0;
  // Returns what updates the elements of one group in one step, piece by piece, each while its
  // gradient is in a cache. It may outlive the rule.
  virtual std::unique_ptr<const PreparedUpdate> Prepare(const StepScalars& step,
                                                        const GroupScalars& group) const = 0;
  // Returns what computes the steps of one group, which outlives the rule. Null unless the
  // optimizer adapts (OptimizerRow). `group.trust_ratio` is not used.
  virtual std::unique_ptr<const PreparedSteps> PrepareSteps(const StepScalars& /*step*/,
                                                            const GroupScalars& /*group*/) const {
    return nullptr;
  }
};

// The implementation of a rule. Both give the same bits on every machine, unless a result is NaN
// (its payload is unspecified).
enum class Kernel { kBest, kReference };

// Unimplemented with the known names for an unknown optimizer; FailedPrecondition for a plug-in
// that is not loaded (optimizer/plugin/updater_plugin.h), or that the spec describes wrongly.
absl::StatusOr<std::unique_ptr<UpdateRule>> NewUpdateRule(const OptimizerSpec& spec,
                                                          Kernel kernel = Kernel::kBest);

// Tells NewUpdateRule how to make the rule of one optimizer. Each file of rules/ defines one of
// these as a static object; nothing else names the rule.
class RuleRegistration {
 public:
  using Factory = absl::StatusOr<std::unique_ptr<UpdateRule>> (*)(const OptimizerSpec& spec,
                                                                  Kernel kernel);
  RuleRegistration(OptimizerName name, Factory factory);
};

// The sum of squares of the scaled gradient in 16 virtual lanes of double, so that vectors of every
// width add in the same order and every instruction set gives the same bits. Add the tiles of a
// chunk in grid order.
class SquareSum {
 public:
  // Adds the squares of scale * x[row * ld + col], the product rounded to float. Column col goes to
  // lane col % 16, rows ascending.
  void Add(const float* x, uint32_t rows, uint32_t cols, size_t ld, float scale);
  // Returns the sum of all lanes: lanes i and i + 8 first, of these i and i + 4, then 2, then 1.
  double Fold() const;

 private:
  std::array<double, 16> lanes_{};
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_UPDATE_RULE_H_
