#include "base/job/drivers/job_scope.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps {
namespace {

std::string Describe(const CallerScope& scope) {
  if (scope.uid == 0) return absl::StrCat("this certificate serves job ", scope.name, " only");
  return absl::StrFormat("this token serves the job with uid %016x only", scope.uid);
}

}  // namespace

absl::Status CallerScope::Check(const JobScope& job) const {
  if (Reaches(job)) return absl::OkStatus();
  // Which of the two does not fit; a token may be narrower than its certificate.
  const bool by_name = !name.empty() && name != job.name;
  return absl::PermissionDeniedError(
      absl::StrCat(Describe(by_name ? CallerScope{name, 0} : CallerScope{"", uid}),
                   ", and this is another one; use one of that job, or of all jobs"));
}

absl::Status CallerScope::CheckUnlimited(const char* what) const {
  if (!is_limited()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(Describe(*this), ", and ", what,
                                                  " concerns all jobs; use one that names no job"));
}

}  // namespace eps
