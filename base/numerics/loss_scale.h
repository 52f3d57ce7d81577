#ifndef EPS_BASE_NUMERICS_LOSS_SCALE_H_
#define EPS_BASE_NUMERICS_LOSS_SCALE_H_

// The loss scale of training in FP16: the loss is multiplied by a power of two, so that small
// gradients do not become zero, and the optimizer divides by it. A dynamic scale follows the
// overflows (Micikevicius et al., Mixed Precision Training, 2018, section 3.2). Pure.

#include <cstdint>

namespace eps {

inline constexpr int32_t kMaxLossScaleLog2 = 24;

// Whether overflows change the scale.
enum class LossScaling { kDynamic, kStatic };

// How the scale changes. Plain value.
struct LossScaleRule {
  LossScaling scaling = LossScaling::kDynamic;
  uint32_t initial_log2 = 16;
  uint32_t window = 1000;   // steps without an overflow after which the scale doubles
  uint32_t hysteresis = 2;  // overflows from which on the scale halves, until it doubles again
};

// The scale of a step, and what the rule remembers. Plain value.
struct LossScale {
  int32_t log2 = 0;              // the mean loss is multiplied by 2 to this power
  uint32_t good_steps = 0;       // without an overflow since the scale changed or overflowed
  uint32_t hysteresis_left = 0;  // overflows until the scale halves

  friend bool operator==(const LossScale& a, const LossScale& b) {
    return a.log2 == b.log2 && a.good_steps == b.good_steps &&
           a.hysteresis_left == b.hysteresis_left;
  }
  friend bool operator!=(const LossScale& a, const LossScale& b) { return !(a == b); }
};

// Convert from and to a message v1::LossScale.
template <class Message>
LossScale ToLossScale(const Message& message) {
  return {message.log2(), message.good_steps(), message.hysteresis_left()};
}
template <class Message>
void SetMessage(const LossScale& scale, Message* message) {
  message->set_log2(scale.log2);
  message->set_good_steps(scale.good_steps);
  message->set_hysteresis_left(scale.hysteresis_left);
}

LossScale FirstLossScale(const LossScaleRule& rule);
// Returns the scale of the next step. `overflow` says whether the step's gradient was not finite.
LossScale NextLossScale(const LossScaleRule& rule, const LossScale& scale, bool overflow);
// Whether an overflow at this scale cannot be answered with a lower one.
bool IsLowest(const LossScaleRule& rule, const LossScale& scale);

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_LOSS_SCALE_H_
