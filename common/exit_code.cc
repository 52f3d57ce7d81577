#include "common/exit_code.h"

namespace eps {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAlreadyExists: return ExitCode::kUsage;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition: return ExitCode::kDataInvalid;
    case absl::StatusCode::kNotFound: return ExitCode::kNoInput;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded: return ExitCode::kUnavailable;
    case absl::StatusCode::kResourceExhausted: return ExitCode::kDoesNotFit;
    case absl::StatusCode::kAborted: return ExitCode::kFenced;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return ExitCode::kNotAllowed;
    case absl::StatusCode::kCancelled: return ExitCode::kInterrupted;
    default: return ExitCode::kInternal;
  }
}

}  // namespace eps
