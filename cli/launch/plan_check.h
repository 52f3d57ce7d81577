#ifndef EPS_CLI_LAUNCH_PLAN_CHECK_H_
#define EPS_CLI_LAUNCH_PLAN_CHECK_H_

// A run beside its plan: what `eps train` says if metrics.hardware describes the machines.

#include <deque>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "planner/units.h"
#include "base/job/job_spec.h"

namespace eps {

// Thread-compatible.
class PlanCheck {
 public:
  // Without a description nothing is planned, and all texts are empty. Errors as ReadHardware and
  // planner::MakePlan.
  static absl::StatusOr<PlanCheck> New(const Config& config, const JobSpec& spec);

  // The plan in a few lines.
  const std::string& summary() const { return summary_; }
  void AddStep(double seconds);
  // The planned step and the median of the last ones; empty before the first.
  std::string Verdict() const;

 private:
  std::string summary_;
  std::optional<planner::Seconds> planned_;
  std::deque<double> steps_;  // seconds of the last ones
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLAN_CHECK_H_
