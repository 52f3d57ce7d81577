#ifndef EPS_CLI_LAUNCH_PLAN_CHECK_H_
#define EPS_CLI_LAUNCH_PLAN_CHECK_H_

// Compares a run with its plan, for `eps train` with metrics.hardware.

#include <deque>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"
#include "eps/v1/control.pb.h"
#include "planner/units.h"

namespace eps {

// The planned step of a run and the measured ones. Thread-compatible.
class PlanCheck {
 public:
  // Plans nothing, and returns empty texts, if metrics.hardware is empty. Errors as ReadHardware
  // and planner::MakePlan.
  static absl::StatusOr<PlanCheck> New(const Config& config, const JobSpec& spec);

  // Returns the plan in a few lines.
  const std::string& summary() const { return summary_; }
  // Adds the duration of a completed step. Ignores records of evaluations, which are not planned.
  void OnRecord(const v1::StepRecord& record);
  // Returns a line with the planned and the measured step time (the median of the last steps);
  // empty before the first step.
  std::string Verdict() const;

 private:
  std::string summary_;
  std::optional<planner::Seconds> planned_;
  std::deque<double> steps_;  // seconds, of the last steps
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLAN_CHECK_H_
