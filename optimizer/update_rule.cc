#include "optimizer/update_rule.h"

#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/flush_denormals.h"
#include "optimizer/kernels.h"

namespace eps {
namespace {

constexpr StateField kAdamWFields[] = {{"exp_avg"}, {"exp_avg_sq"}};
constexpr StateField kMomentumFields[] = {{"momentum_buffer"}};

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const OptimizerSpec& spec, Kernel kernel)
      : spec_(spec), best_(kernel == Kernel::kBest), run_(best_ ? AdamW : reference::AdamW) {}

  absl::Span<const StateField> fields() const override { return kAdamWFields; }

  void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld, const StepScalars& step,
           const GroupScalars& group, const TileState& state) const override {
    AdamWTile tile;
    tile.rows = rows;
    tile.cols = cols;
    tile.grad = grad;
    tile.grad_ld = grad_ld;
    tile.weight = state.weight;
    tile.exp_avg = state.field[0];
    tile.exp_avg_sq = state.field[1];
    tile.ld = state.ld;
    const AdamWScalars scalars = Scalars(step, group);
    // The mode is set outside of the indirect call, across which the compiler moves no arithmetic.
    ScopedFlushDenormals flush;
    run_(scalars, tile);
  }

  absl::optional<AdamWScalars> adamw_scalars(const StepScalars& step,
                                             const GroupScalars& group) const override {
    if (!best_) return absl::nullopt;
    return Scalars(step, group);
  }

 private:
  AdamWScalars Scalars(const StepScalars& step, const GroupScalars& group) const {
    AdamWScalars s;
    s.grad_scale = step.grad_scale;
    s.decay = static_cast<float>(1.0 - step.lr * group.weight_decay);
    s.beta1 = static_cast<float>(spec_.beta1);
    s.one_minus_beta1 = static_cast<float>(1.0 - spec_.beta1);
    s.beta2 = static_cast<float>(spec_.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - spec_.beta2);
    s.rsqrt_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
    s.eps = static_cast<float>(spec_.eps);
    s.step_size = static_cast<float>(step.lr / step.bias_correction1);
    return s;
  }

  const OptimizerSpec spec_;
  const bool best_;
  void (*const run_)(const AdamWScalars&, const AdamWTile&);
};

class SgdRule final : public UpdateRule {
 public:
  SgdRule(const OptimizerSpec& spec, Kernel kernel)
      : spec_(spec), run_(kernel == Kernel::kReference ? reference::Sgd : Sgd) {}

  absl::Span<const StateField> fields() const override { return StateFields(spec_); }

  void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld, const StepScalars& step,
           const GroupScalars& group, const TileState& state) const override {
    SgdTile tile;
    tile.rows = rows;
    tile.cols = cols;
    tile.grad = grad;
    tile.grad_ld = grad_ld;
    tile.weight = state.weight;
    tile.momentum_buffer_or_null = fields().empty() ? nullptr : state.field[0];
    tile.ld = state.ld;
    SgdScalars scalars;
    scalars.grad_scale = step.grad_scale;
    scalars.weight_decay = static_cast<float>(group.weight_decay);
    scalars.momentum = static_cast<float>(spec_.momentum);
    scalars.lr = static_cast<float>(step.lr);
    ScopedFlushDenormals flush;  // as in AdamWRule
    run_(scalars, tile);
  }

 private:
  const OptimizerSpec spec_;
  void (*const run_)(const SgdScalars&, const SgdTile&);
};

}  // namespace

absl::Span<const StateField> StateFields(const OptimizerSpec& spec) {
  switch (spec.name) {
    case OptimizerName::kAdamW:
      return kAdamWFields;
    case OptimizerName::kSgd:
      if (spec.momentum == 0) return {};
      return kMomentumFields;
  }
  return {};
}

absl::StatusOr<std::unique_ptr<UpdateRule>> NewUpdateRule(const OptimizerSpec& spec,
                                                          Kernel kernel) {
  switch (spec.name) {
    case OptimizerName::kAdamW: {
      std::unique_ptr<UpdateRule> rule = std::make_unique<AdamWRule>(spec, kernel);
      return rule;
    }
    case OptimizerName::kSgd: {
      std::unique_ptr<UpdateRule> rule = std::make_unique<SgdRule>(spec, kernel);
      return rule;
    }
  }
  return absl::UnimplementedError(absl::StrCat("optimizer.name: there is no optimizer number ",
                                               static_cast<int>(spec.name),
                                               "; known are adamw and sgd"));
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
