#include "cli/launch/plan_check.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/launch/planned_run.h"
#include "planner/hardware.h"
#include "planner/plan.h"
#include "planner/plan_report.h"
#include "planner/quantity_text.h"

namespace eps {
namespace {

constexpr size_t kComparedSteps = 1000;

}  // namespace

absl::StatusOr<PlanCheck> PlanCheck::New(const Config& config, const JobSpec& spec) {
  PlanCheck check;
  if (config.metrics.hardware.empty()) return check;
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, ReadHardware(config.metrics.hardware));
  EPS_ASSIGN_OR_RETURN(const planner::Plan plan, planner::MakePlan(config, spec, hardware));
  check.planned_ = plan.step();
  check.summary_ = planner::PlanToSummary(plan);
  return check;
}

void PlanCheck::OnRecord(const v1::StepRecord& record) {
  if (record.has_evaluation()) return;
  steps_.push_back(record.step_seconds());
  if (steps_.size() > kComparedSteps) steps_.pop_front();
}

std::string PlanCheck::Verdict() const {
  if (!planned_.has_value() || steps_.empty()) return "";
  std::vector<double> sorted(steps_.begin(), steps_.end());
  std::sort(sorted.begin(), sorted.end());
  const planner::Seconds measured(sorted[sorted.size() / 2]);
  return absl::StrFormat("plan: a step of %s, measured %s (median of the last %d), %+.1f %%\n",
                         planner::ShortText(*planned_), planner::ShortText(measured), sorted.size(),
                         100 * (*planned_ / measured - 1));
}

}  // namespace eps
