#ifndef EPS_BASE_JOB_SCHEDULE_H_
#define EPS_BASE_JOB_SCHEDULE_H_

// Learning-rate schedules by their Hugging Face names. The lead shard computes the rate once per
// step and stores it in the step's record, so that no other process evaluates a schedule.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/job/key_rules.h"

namespace eps {

// The last 1/kDecayFraction of all updates are the decay of warmup_stable_decay, which Hugging Face
// leaves to the caller.
inline constexpr uint64_t kDecayFraction = 10;

// The settings of a schedule.
struct ScheduleSpec {
  std::string name = "constant";  // one of ScheduleNames()
  uint64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;
  double num_cycles = 0.5;
  double power = 1.0;
};

template <class V, class S>
void ScheduleKeys(V* v, S* s) {
  v->Key("lr_scheduler.name", &s->name, AnyValue(),
         "Learning rate schedule, by its Hugging Face name.");
  v->Key("lr_scheduler.warmup_steps", &s->warmup_steps, Range(0, kMaxSteps),
         "Steps of linear warm-up.");
  v->Key("lr_scheduler.min_lr_ratio", &s->min_lr_ratio, Reals(0.0, 1.0),
         "Lowest learning rate as a fraction of optimizer.lr.");
  v->Key("lr_scheduler.num_cycles", &s->num_cycles, Reals(0.0, kMaxFactor),
         "Waves of the cosine schedules.");
  v->Key("lr_scheduler.power", &s->power, Reals(0.0, kMaxFactor),
         "Exponent of the polynomial schedule.");
}

// constant, constant_with_warmup, linear, cosine, cosine_with_restarts, polynomial, inverse_sqrt,
// cosine_with_min_lr, warmup_stable_decay.
const std::vector<std::string>& ScheduleNames();
// InvalidArgument with the nearest name.
absl::Status ValidateSchedule(const ScheduleSpec& schedule);

// Returns the rate of the update that makes version `update` (1-based; torch's LambdaLR step
// update-1), by the formulas of transformers.get_scheduler. polynomial and the schedules with a
// minimum rate end at min_lr_ratio * base_lr; warmup_stable_decay rises linearly and falls as a
// half cosine. REQUIRES ValidateSchedule(schedule).ok() and update >= 1.
double LearningRate(const ScheduleSpec& schedule, double base_lr, uint64_t update,
                    uint64_t total_updates);

// x^n by squaring, in double, no libm: 1 - IntegerPower(beta, t) is AdamW's bias correction.
double IntegerPower(double x, uint64_t n);

}  // namespace eps

#endif  // EPS_BASE_JOB_SCHEDULE_H_
