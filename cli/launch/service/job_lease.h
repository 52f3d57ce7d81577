#ifndef EPS_CLI_LAUNCH_SERVICE_JOB_LEASE_H_
#define EPS_CLI_LAUNCH_SERVICE_JOB_LEASE_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "base/job/drivers/driver_lease.h"
#include "eps/v1/scheduler.pb.h"
#include "wire/scheduler_client.h"

namespace eps {

// The lease of a driver on one job of the board. Without it, the driver must write nothing more:
// another one may drive the job. Thread-compatible.
class JobLease {
 public:
  using Clock = std::chrono::steady_clock;

  // `claim` answers a request that was sent at `asked`. `client` must outlive the lease.
  JobLease(SchedulerClient* client, std::string nonce, const v1::ClaimJobReply& claim,
           Clock::time_point asked);

  // The job as the lead saw it last, with what is wanted of it.
  const v1::Job& job() const { return job_; }
  // Names the lease to the servers.
  const DriverLease& id() const { return id_; }
  // When the next report is due, if nothing has changed.
  Clock::time_point due() const { return due_; }

  // Renews the lease and reports; fills in the fields of `report` that name the job. OK also while
  // the lead does not answer and the lease cannot be over. Aborted if it is lost: the lead says so,
  // or has not answered for as long as the lease lasts.
  absl::Status Report(v1::ReportJobRequest report);
  // Reports and gives the lease back. Repeats the call until the lead answers. Aborted as in
  // Report.
  absl::Status End(v1::ReportJobRequest report);

 private:
  absl::Status Send(v1::ReportJobRequest report);

  SchedulerClient* const client_;
  const std::string nonce_;
  v1::Job job_;
  DriverLease id_;
  Clock::duration length_;
  Clock::time_point valid_until_;
  Clock::time_point due_;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVICE_JOB_LEASE_H_
