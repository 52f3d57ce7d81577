#include "base/job/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/job/key_rules.h"
#include "base/job/unknown_name.h"
#include "base/numerics/deterministic_math.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// Steps of inverse_sqrt's time scale when there is no warm-up.
constexpr uint64_t kDefaultTimescale = 10'000;

double Ratio(uint64_t numerator, uint64_t denominator) {
  return static_cast<double>(numerator) / static_cast<double>(std::max<uint64_t>(1, denominator));
}

// 1 at the start, 0 at progress 1 with half a cycle.
double HalfCosine(double cycles, double progress) {
  return 0.5 * (1.0 + DeterministicCosPi(cycles * 2.0 * progress));
}

double Between(double factor, double floor) { return factor * (1.0 - floor) + floor; }

// base^power for 0 <= base <= 1.
double Power(double base, double power) {
  if (power >= 0 && power == static_cast<double>(static_cast<uint64_t>(power))) {
    return IntegerPower(base, static_cast<uint64_t>(power));
  }
  return base <= 0.0 ? 0.0 : DeterministicExp(power * DeterministicLog(base));
}

double RestartingCosine(double cycles, double progress) {
  if (progress >= 1.0) return 0.0;
  const double position = cycles * progress;
  const double within = position - static_cast<double>(static_cast<uint64_t>(position));
  return 0.5 * (1.0 + DeterministicCosPi(within));
}

double WarmupStableDecay(const ScheduleSpec& schedule, uint64_t step, uint64_t total) {
  const uint64_t decay = std::max<uint64_t>(1, total / kDecayFraction);
  const uint64_t start = std::max(schedule.warmup_steps, total > decay ? total - decay : 0);
  if (step < start) return 1.0;
  if (step - start >= decay) return schedule.min_lr_ratio;
  return std::max(0.0, Between(HalfCosine(schedule.num_cycles, Ratio(step - start, decay)),
                               schedule.min_lr_ratio));
}

double Factor(const ScheduleSpec& schedule, uint64_t step, uint64_t total) {
  const std::string& name = schedule.name;
  const uint64_t warmup = schedule.warmup_steps;
  if (name == "constant") return 1.0;
  if (step < warmup) {
    const double rise = Ratio(step, warmup);
    return name == "warmup_stable_decay" ? Between(rise, schedule.min_lr_ratio) : rise;
  }
  const uint64_t decay_steps = total > warmup ? total - warmup : 0;
  const double progress = Ratio(step - warmup, decay_steps);
  if (name == "constant_with_warmup") return 1.0;
  if (name == "linear") return Ratio(step < total ? total - step : 0, decay_steps);
  if (name == "cosine") return std::max(0.0, HalfCosine(schedule.num_cycles, progress));
  if (name == "cosine_with_restarts") return RestartingCosine(schedule.num_cycles, progress);
  if (name == "cosine_with_min_lr") {
    return std::max(0.0, Between(HalfCosine(schedule.num_cycles, progress), schedule.min_lr_ratio));
  }
  if (name == "polynomial") {
    const double left = step >= total ? 0.0 : 1.0 - progress;
    return Between(Power(left, schedule.power), schedule.min_lr_ratio);
  }
  if (name == "inverse_sqrt") {
    const uint64_t timescale = warmup > 0 ? warmup : kDefaultTimescale;
    return 1.0 / std::sqrt(Ratio(step + (timescale - warmup), timescale));
  }
  return WarmupStableDecay(schedule, step, total);
}

}  // namespace

const std::vector<std::string>& ScheduleNames() {
  static const auto* const names =
      new std::vector<std::string>{"constant",     "constant_with_warmup", "linear",
                                   "cosine",       "cosine_with_restarts", "polynomial",
                                   "inverse_sqrt", "cosine_with_min_lr",   "warmup_stable_decay"};
  return *names;
}

absl::Status ValidateSchedule(const ScheduleSpec& schedule) {
  const std::vector<std::string>& names = ScheduleNames();
  if (std::find(names.begin(), names.end(), schedule.name) == names.end()) {
    return UnknownName("lr_scheduler.name", schedule.name, names);
  }
  RuleChecker checker;
  ScheduleKeys(&checker, &schedule);
  EPS_RETURN_IF_ERROR(checker.status());
  const auto whole_cycles = static_cast<double>(static_cast<uint64_t>(schedule.num_cycles));
  if (schedule.name == "cosine_with_restarts" &&
      (schedule.num_cycles < 1.0 || schedule.num_cycles != whole_cycles)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lr_scheduler.num_cycles: lr_scheduler.name=cosine_with_restarts needs a "
                     "whole number of cycles, 1 or more, found ",
                     schedule.num_cycles));
  }
  return absl::OkStatus();
}

double LearningRate(const ScheduleSpec& schedule, double base_lr, uint64_t update,
                    uint64_t total_updates) {
  return base_lr * Factor(schedule, update - 1, total_updates);
}

double IntegerPower(double x, uint64_t n) {
  double result = 1.0;
  for (; n > 0; n >>= 1) {
    if (n & 1) result *= x;
    x *= x;
  }
  return result;
}

}  // namespace eps
