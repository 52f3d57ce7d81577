#ifndef EPS_SERVER_SHELL_JOB_REQUEST_H_
#define EPS_SERVER_SHELL_JOB_REQUEST_H_

// The fields that CreateJob and PrepareJob have in common, checked, and compared with a job.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "eps_server/shell/job_shell.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace eps {

// Parses the text of a spec. InvalidArgument if it is too long, and the errors of JobSpec::Parse.
absl::StatusOr<JobSpec> ParseSpec(const std::string& text);

// Returns the addresses of the servers. InvalidArgument if there are none, too many, or one twice.
absl::StatusOr<std::vector<std::string>> CheckServers(
    const google::protobuf::RepeatedPtrField<std::string>& servers);

// Whether `job` is the one that a request describes.
bool Matches(const JobShell& job, const JobSpec& spec, const std::vector<std::string>& servers,
             uint32_t shard);
// Returns the error for a request that does not match the job that this server holds; `durable`:
// also after a restart.
absl::Status OtherJob(const JobShell& job, const JobSpec& wanted,
                      const std::vector<std::string>& servers, uint32_t shard, bool durable);

}  // namespace eps

#endif  // EPS_SERVER_SHELL_JOB_REQUEST_H_
