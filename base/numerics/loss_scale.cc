#include "base/numerics/loss_scale.h"

#include <algorithm>

namespace eps {

LossScale FirstLossScale(const LossScaleRule& rule) {
  return {static_cast<int32_t>(rule.initial_log2), 0, rule.hysteresis};
}

LossScale NextLossScale(const LossScaleRule& rule, const LossScale& scale, bool overflow) {
  if (rule.scaling == LossScaling::kStatic) return scale;
  LossScale next = scale;
  if (overflow) {
    next.good_steps = 0;
    if (next.hysteresis_left > 0) --next.hysteresis_left;
    if (next.hysteresis_left == 0) next.log2 = std::max(next.log2 - 1, 0);
    return next;
  }
  if (++next.good_steps < rule.window) return next;
  next.good_steps = 0;
  next.hysteresis_left = rule.hysteresis;
  next.log2 = std::min(next.log2 + 1, kMaxLossScaleLog2);
  return next;
}

bool IsLowest(const LossScaleRule& rule, const LossScale& scale) {
  return rule.scaling == LossScaling::kDynamic && scale.log2 == 0 && scale.hysteresis_left <= 1;
}

}  // namespace eps
