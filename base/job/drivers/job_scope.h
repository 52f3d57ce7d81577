#ifndef EPS_BASE_JOB_DRIVERS_JOB_SCOPE_H_
#define EPS_BASE_JOB_DRIVERS_JOB_SCOPE_H_

// Certificates and tokens of one job: what they name, and which job they reach
// (docs/guides/security.md).

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace eps {

// The names of a job. Plain value.
struct JobScope {
  std::string name;  // on the board of jobs; of a job that is not there, the name in its spec
  uint64_t uid = 0;  // on the board, where names are used again; 0 for a job that is not there

  friend bool operator==(const JobScope& a, const JobScope& b) {
    return a.name == b.name && a.uid == b.uid;
  }
};

// The jobs that a caller may reach. Plain value.
struct CallerScope {
  std::string name;  // of its only job, by its certificate; empty: any name
  uint64_t uid = 0;  // of its only job, by its token; 0: any

  bool is_limited() const { return !name.empty() || uid != 0; }
  bool Reaches(const JobScope& job) const {
    return (name.empty() || name == job.name) && (uid == 0 || uid == job.uid);
  }
  // PermissionDenied, naming the caller's job but not the other one, unless Reaches(job).
  absl::Status Check(const JobScope& job) const;
  // PermissionDenied if the caller may reach one job only. `what` concerns all jobs.
  absl::Status CheckUnlimited(const char* what) const;
};

// Convert from and to a message v1::JobScope.
template <class Message>
JobScope ToJobScope(const Message& message) {
  return {message.name(), message.uid()};
}
template <class Message>
void SetMessage(const JobScope& scope, Message* message) {
  message->set_name(scope.name);
  message->set_uid(scope.uid);
}

}  // namespace eps

#endif  // EPS_BASE_JOB_DRIVERS_JOB_SCOPE_H_
