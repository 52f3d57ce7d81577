#ifndef EPS_SERVER_JOBS_JOB_RULES_H_
#define EPS_SERVER_JOBS_JOB_RULES_H_

// The rules of single jobs and requests on the board: limits of their fields, and how desires,
// phases and drivers change. Pure functions. The checks return InvalidArgument, which names the
// field, the limit and what was found.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "eps/v1/scheduler.pb.h"

namespace eps {

inline constexpr int kMaxJobLabels = 64;
inline constexpr size_t kMaxLabelKeyBytes = 128;
inline constexpr size_t kMaxLabelValueBytes = 256;
inline constexpr size_t kMaxResultTextBytes = 1024;  // longer ones are cut
inline constexpr size_t kMaxCheckpointBytes = 4096;  // of its folder's path

absl::Status CheckSubmission(const v1::SubmitJobRequest& request);
absl::Status CheckUpdate(const v1::UpdateJobRequest& request);
absl::Status CheckRemoval(const v1::RemoveJobRequest& request);
absl::Status CheckCheckpoint(const v1::CheckpointJobRequest& request);
absl::Status CheckClaim(const v1::ClaimJobRequest& request);
// Beside the fields: an end has a result that fits its phase.
absl::Status CheckReport(const v1::ReportJobRequest& request);
absl::Status CheckListing(const v1::ListJobsRequest& request);
absl::Status CheckWatch(const v1::WatchJobsRequest& request);

// Returns the error of a request that names a job which is not on the board.
absl::Status NoSuchJob(const std::string& name);

// Returns whether the job failed in a way after which another start may succeed.
bool MayRunAgain(const v1::Job& job);
// Returns whether a driver may take the job: it has not ended, RUN is wanted, and it has no driver.
bool WaitsForDriver(const v1::Job& job);

// Returns the owner that a request names, or that of jobs for any driver.
std::string JobOwnerOf(const std::string& owner);
// Returns the first difference between the job and the request in words; empty if the request is
// that of the job.
std::string FirstDifference(const v1::Job& job, const v1::SubmitJobRequest& request);

// Gives a job without a driver the phase that nobody else would give it: with CANCEL wanted it has
// ended, with PAUSE it is paused, and a paused one with RUN waits for a driver.
void SettleWithoutDriver(v1::Job* job);

}  // namespace eps

#endif  // EPS_SERVER_JOBS_JOB_RULES_H_
