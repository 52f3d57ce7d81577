#ifndef EPS_SERVER_JOBS_TESTING_BOARD_REQUESTS_H_
#define EPS_SERVER_JOBS_TESTING_BOARD_REQUESTS_H_

// Requests to a board of jobs. For tests only.

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "eps/v1/scheduler.pb.h"

namespace eps {

// Returns the nonce of a driver.
inline std::string NonceOf(int driver) { return absl::StrFormat("%032x", driver); }

inline v1::SubmitJobRequest SubmitOf(const std::string& name,
                                     const std::string& config = "model: {}\n") {
  v1::SubmitJobRequest request;
  request.set_request_id("test");
  request.set_name(name);
  request.set_config(config);
  return request;
}

inline v1::ClaimJobRequest ClaimOf(int driver, const std::string& name = "") {
  v1::ClaimJobRequest request;
  request.set_driver_nonce(NonceOf(driver));
  request.set_host("host-" + std::to_string(driver));
  request.set_name(name);
  return request;
}

// Returns a report of the driver that holds the job.
inline v1::ReportJobRequest ReportOf(const v1::Job& job,
                                     v1::JobPhase phase = v1::JOB_PHASE_UNSPECIFIED) {
  v1::ReportJobRequest request;
  request.set_name(job.name());
  request.set_uid(job.uid());
  request.set_driver_nonce(job.driver().driver_nonce());
  request.set_lease_generation(job.driver().generation());
  request.set_phase(phase);
  return request;
}

// Returns the report that the job ended with that exit code.
inline v1::ReportJobRequest EndOf(const v1::Job& job, uint32_t exit_code) {
  v1::ReportJobRequest request =
      ReportOf(job, exit_code == 0 ? v1::JOB_PHASE_SUCCEEDED : v1::JOB_PHASE_FAILED);
  request.set_ended(true);
  request.mutable_result()->set_exit_code(exit_code);
  return request;
}

// Returns the report with the id of the job that the driver has created.
inline v1::ReportJobRequest WithId(v1::ReportJobRequest request, uint64_t job_id) {
  request.set_job_id(job_id);
  return request;
}

inline v1::UpdateJobRequest UpdateOf(const v1::Job& job, v1::Desired desired) {
  v1::UpdateJobRequest request;
  request.set_name(job.name());
  request.set_expected_generation(job.generation());
  request.set_desired(desired);
  return request;
}

inline v1::CheckpointJobRequest CheckpointOf(const std::string& name) {
  v1::CheckpointJobRequest request;
  request.set_name(name);
  return request;
}

inline v1::RemoveJobRequest RemoveOf(const std::string& name) {
  v1::RemoveJobRequest request;
  request.set_name(name);
  return request;
}

inline v1::ListJobsRequest ListOf(const std::string& name = "") {
  v1::ListJobsRequest request;
  request.set_name(name);
  return request;
}

}  // namespace eps

#endif  // EPS_SERVER_JOBS_TESTING_BOARD_REQUESTS_H_
