#ifndef EPS_CLI_LAUNCH_SERVICE_DRIVEN_JOB_H_
#define EPS_CLI_LAUNCH_SERVICE_DRIVEN_JOB_H_

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/exit_code.h"
#include "cli/launch/child_process.h"
#include "cli/launch/service/data_roots.h"
#include "cli/launch/service/job_lease.h"
#include "cli/launch/service/job_progress.h"

namespace eps {

// How a driver runs jobs.
struct DrivePlan {
  std::vector<std::string> servers;  // in shard order; the first leads
  std::string out;                   // absolute; each job has a folder in it
  DataRoots roots;
  SecurityConfig security;
  std::string on_saved;  // checkpoint.on_saved; empty: none
  // optimizer.plugin and quantization.plugin of jobs that use them; empty: these jobs fail.
  std::string updater_plugin;
  std::string codec_plugin;
};

// One job of the board that this driver holds: `eps train` as a child process, in a folder named
// after the job. Call Run once, on a thread that lives as long as the job. Thread-compatible.
class DrivenJob {
 public:
  // Why the driver holds the job no longer.
  enum class Outcome {
    kEnded,    // it succeeded, failed or was cancelled
    kPaused,   // as somebody wanted
    kStopped,  // this process was interrupted
    kNoRoom,   // the servers hold another job; this one is queued again
    kLost,     // the lease was lost; the child was killed
  };
  // How it went.
  struct Result {
    Outcome outcome = Outcome::kEnded;
    ExitCode code = ExitCode::kOk;  // kFenced if the lease is lost
    std::string text;               // why, if it did not succeed
  };

  // `plan` must outlive the job.
  DrivenJob(const DrivePlan* plan, JobLease lease);

  // Runs the job until it ends, until somebody wants it to stop, until Interrupted(), or until the
  // lease is lost. Restarts a child that died of something that may pass. The board knows the
  // result, unless the lease is lost; it keeps the phase of a job that was only interrupted.
  Result Run();

  const v1::Job& job() const { return lease_.job(); }

 private:
  using Clock = JobLease::Clock;

  // Why the child was asked to stop.
  enum class Stop { kNone, kPause, kCancel, kInterrupt };

  absl::Status Prepare();
  absl::StatusOr<std::vector<std::string>> Command() const;
  absl::Status StartChild();
  // Returns once the child has ended; Aborted if the lease is lost, in which case it was killed.
  absl::Status FollowChild();
  v1::ReportJobRequest ReportOf(v1::JobPhase phase) const;
  absl::Status Report(v1::JobPhase phase);
  void ObeyDesired();
  void StopChild(Stop why);
  // Returns whether the child should be started again, after a pause during which it renews the
  // lease.
  absl::StatusOr<bool> StartsAgain();
  Result EndOfChild();
  Result End(Outcome outcome, v1::JobPhase phase, ExitCode code, const std::string& text);
  Result Lost(const absl::Status& status);
  ExitCode ChildCode() const;
  bool SaysNoRoom(const std::string& error) const;

  const DrivePlan* const plan_;
  JobLease lease_;
  const std::string folder_;
  std::unique_ptr<JobProgressReader> progress_;
  std::unique_ptr<ChildProcess> child_;
  Stop stop_ = Stop::kNone;
  Clock::time_point kill_at_ = Clock::time_point::max();
  int fruitless_ = 0;           // restarts since the last step
  uint64_t started_after_ = 0;  // the last step before the child was started
  uint64_t asked_for_ = 0;      // the last checkpoint that the child was asked for
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVICE_DRIVEN_JOB_H_
