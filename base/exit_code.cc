#include "base/exit_code.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace eps {
namespace {

constexpr char kPayload[] = "eps/exit_code";

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  int given = 0;
  if (payload.has_value() && absl::SimpleAtoi(std::string(*payload), &given)) {
    return static_cast<ExitCode>(given);
  }
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAlreadyExists:
      return ExitCode::kUsage;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
      return ExitCode::kDataInvalid;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNoInput;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kDoesNotFit;
    case absl::StatusCode::kAborted:
      return ExitCode::kFenced;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ExitCode::kNotAllowed;
    case absl::StatusCode::kCancelled:
      return ExitCode::kInterrupted;
    default:
      return ExitCode::kInternal;
  }
}

absl::Status WithExitCode(absl::Status status, ExitCode code) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(code))));
  return status;
}

absl::Status IoError(absl::string_view message) {
  return WithExitCode(absl::InternalError(message), ExitCode::kIo);
}

}  // namespace eps
