#include "optimizer/rules/adamw.h"

#include <cmath>
#include <memory>

#include "base/job/optimizers.h"
#include "base/numerics/flush_denormals.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/adamw.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/adamw-inl.h"
#include "optimizer/rules/tile_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

// AdamW for UpdateTile.
struct AdamWLoop {
  template <class D>
  HWY_INLINE void Vector(D d, const float* grad, float* weight, float* exp_avg,
                         float* exp_avg_sq) const {
    AdamWVector(d, scalars, grad, weight, exp_avg, exp_avg_sq);
  }
  AdamWScalars scalars;
};

void AdamWKernel(const AdamWScalars& scalars, const AdamWTile& tile) {
  UpdateTile(AdamWLoop{scalars}, tile.rows, tile.cols, tile.grad, tile.grad_ld, tile.ld,
             tile.weight, tile.exp_avg, tile.exp_avg_sq);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {

HWY_EXPORT(AdamWKernel);

void AdamW(const AdamWScalars& scalars, const AdamWTile& tile) {
  HWY_DYNAMIC_DISPATCH(AdamWKernel)(scalars, tile);
}

void reference::AdamW(const AdamWScalars& scalars, const AdamWTile& tile) {
  const AdamWScalars s = scalars;
  for (size_t r = 0; r < tile.rows; ++r) {
    for (size_t c = 0; c < tile.cols; ++c) {
      const size_t i = r * tile.ld + c;
      const float g = tile.grad[r * tile.grad_ld + c] * s.grad_scale;
      const float m = s.beta1 * tile.exp_avg[i] + s.one_minus_beta1 * g;
      const float v = s.beta2 * tile.exp_avg_sq[i] + (s.one_minus_beta2 * g) * g;
      const float d = std::sqrt(v) * s.rsqrt_correction2 + s.eps;
      tile.weight[i] = tile.weight[i] * s.decay - (s.step_size * m) / d;
      tile.exp_avg[i] = m;
      tile.exp_avg_sq[i] = v;
    }
  }
}

namespace {

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const OptimizerSpec& spec, Kernel kernel)
      : spec_(spec), best_(kernel == Kernel::kBest), run_(best_ ? AdamW : reference::AdamW) {}

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
    // The mode is set outside of the indirect call: the compiler moves no arithmetic across it.
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
    const double lr = step.lr * group.lr_multiplier;
    AdamWScalars s;
    s.grad_scale = step.grad_scale;
    s.decay = static_cast<float>(1.0 - lr * group.weight_decay);
    s.beta1 = static_cast<float>(spec_.beta1);
    s.one_minus_beta1 = static_cast<float>(1.0 - spec_.beta1);
    s.beta2 = static_cast<float>(spec_.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - spec_.beta2);
    s.rsqrt_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
    s.eps = static_cast<float>(spec_.eps);
    s.step_size = static_cast<float>(lr / step.bias_correction1);
    return s;
  }

  const OptimizerSpec spec_;
  const bool best_;
  void (*const run_)(const AdamWScalars&, const AdamWTile&);
};

const RuleRegistration kAdamW(OptimizerName::kAdamW,
                              [](const OptimizerSpec& spec,
                                 Kernel kernel) -> std::unique_ptr<UpdateRule> {
                                return std::make_unique<AdamWRule>(spec, kernel);
                              });

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
