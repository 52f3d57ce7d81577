#include "eps_server/core/cuts/cut_plan.h"

#include "base/job/cut_interval.h"
#include "storage/cuts/cut.h"

namespace eps {
namespace {

constexpr uint64_t kFirstInterval = 10;  // until the first cut is measured

}  // namespace

CutPlan::CutPlan(uint64_t cut_steps, uint64_t cut_ms)
    : cuts_(true),
      auto_(cut_steps == kAutoCutSteps),
      interval_(auto_ ? kFirstInterval : cut_steps),
      cut_ms_(cut_ms) {}

void CutPlan::OnOpened(uint64_t step, uint64_t now_ms) {
  last_cut_ = step;
  last_cut_ms_ = now_ms;
  in_flight_ = false;
}

bool CutPlan::Due(uint64_t step, uint64_t last_step, uint64_t now_ms) const {
  if (!cuts_) return false;
  if (step == last_step) return true;
  if (most_ > 0 && step >= last_cut_ + most_) return true;
  if (TimeIsUp(now_ms)) return true;
  if (auto_) return step >= last_cut_ + interval_;
  // Cuts lie at multiples, so that a run that was stopped cuts where an undisturbed one does.
  return interval_ > 0 && step % interval_ == 0;
}

// A cut that follows another one too soon would hold updates back until that one is durable.
bool CutPlan::TimeIsUp(uint64_t now_ms) const {
  if (cut_ms_ == 0 || in_flight_) return false;
  const double limit = CutSeconds(static_cast<double>(cut_ms_) / 1e3, cut_seconds_);
  return static_cast<double>(now_ms - last_cut_ms_) / 1e3 >= limit;
}

void CutPlan::OnDecided(uint64_t step, uint64_t now_ms) {
  last_cut_ = step;
  last_cut_ms_ = now_ms;
  in_flight_ = true;
}

void CutPlan::OnMeasured(double cut_seconds, double step_seconds) {
  cut_seconds_ = cut_seconds;
  if (auto_ && step_seconds > 0) interval_ = AutoCutSteps(cut_seconds, step_seconds);
}

void CutPlan::OnEverywhere(uint64_t step) {
  if (step >= last_cut_) in_flight_ = false;
}

}  // namespace eps
