#ifndef EPS_OPTIMIZER_UPDATE_RULE_H_
#define EPS_OPTIMIZER_UPDATE_RULE_H_

// Update rules as pure functions over tiles. Everything here reads denormals as zero and flushes
// denormal results to zero, whatever the mode of the calling thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "optimizer/kernels.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps {

// One array of optimizer state beside the weights, FP32, element for element.
struct StateField {
  const char* name;  // as in torch's state_dict: "exp_avg"
};

// The state fields that a job's optimizer keeps, in the order of UpdateRule::fields() and of a
// chunk's state, which begins with the weights. Lives as long as the process.
absl::Span<const StateField> StateFields(const OptimizerSpec& spec);

// What one update needs from the job's durable state; equal on all shards. lr, bias corrections
// and clip factor are computed once (by the lead) and carried, never recomputed.
struct StepScalars {
  double lr = 0;
  double bias_correction1 = 1;  // 1 - beta1^t
  double bias_correction2 = 1;  // 1 - beta2^t
  // Multiplies the reduced gradient, once: 2^k / tokens * clip, rounded to float.
  float grad_scale = 1;
  uint64_t update = 0;  // t, 1-based
};

struct GroupScalars {
  double weight_decay = 0;
};

inline constexpr int kMaxStateFields = 4;

// A tile's weights and state, all with the same leading dimension.
struct TileState {
  float* weight = nullptr;
  std::array<float*, kMaxStateFields> field{};
  size_t ld = 0;
};

// Immutable, thread-safe.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual absl::Span<const StateField> fields() const = 0;
  // Updates `rows` x `cols` elements in place from the reduced gradient grad[row * grad_ld + col],
  // which overlaps no array of the state. The result does not depend on how elements are grouped
  // into calls.
  virtual void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld,
                   const StepScalars& step, const GroupScalars& group,
                   const TileState& state) const = 0;
  // For kernels that update on their way (AdamW of kernels.h gives the bits of Run): the numbers of
  // this step, if the rule is AdamW with fields() as kernels.h has them. Nothing: Run is the only
  // way, and always correct.
  virtual absl::optional<AdamWScalars> adamw_scalars(const StepScalars& /*step*/,
                                                     const GroupScalars& /*group*/) const {
    return absl::nullopt;
  }
};

// Which implementation of a rule: both give the same bits on every machine, unless a result is NaN
// (its payload is then unspecified).
enum class Kernel { kBest, kReference };

// Unimplemented with the known names for an unknown optimizer.
absl::StatusOr<std::unique_ptr<UpdateRule>> NewUpdateRule(const OptimizerSpec& spec,
                                                          Kernel kernel = Kernel::kBest);

// Sum of squares of the scaled gradient in 16 virtual lanes of double, so that vectors of every
// width add in one order. Fed the tiles of a chunk in grid order. Bit-equal on every instruction
// set.
class SquareSum {
 public:
  // Adds the squares of scale * x[row * ld + col], the product rounded to float. Column col goes to
  // lane col % 16, rows ascending.
  void Add(const float* x, uint32_t rows, uint32_t cols, size_t ld, float scale);
  // The sum of all lanes: lane i and lane i + 8, of these i and i + 4, then 2, then 1.
  double Fold() const;

 private:
  std::array<double, 16> lanes_{};
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_UPDATE_RULE_H_
