#ifndef EPS_BASE_EXIT_CODE_H_
#define EPS_BASE_EXIT_CODE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// The exit codes of all programs; schedulers match on these numbers.
enum class ExitCode : int {
  kOk = 0,
  kDifferent = 1,     // a comparison found a difference (verify, digest)
  kUsage = 64,        // usage or configuration
  kDataInvalid = 65,  // data or state invalid
  kNoInput = 66,      // input missing
  kUnavailable = 69,  // a peer is unavailable
  kInternal = 70,     // broken invariant
  kDoesNotFit = 71,   // memory or disk
  kIo = 74,           // I/O error (fsync)
  kFenced = 75,       // another incarnation took over: do not retry in place
  kCancelled = 76,    // cancelled through the board
  kNotAllowed = 77,
  kInterrupted = 130,
  kTerminated = 143,
};

// Returns the exit code of a command that ended with `status`. A code set by WithExitCode wins over
// that of the status code.
ExitCode ExitCodeOf(const absl::Status& status);

// Adds an exit code of its own to `status` (not OK), for errors that no status code expresses: I/O
// errors, and the exit of another of our processes. It is a payload, which does not leave this
// process.
absl::Status WithExitCode(absl::Status status, ExitCode code);

// An Internal error with exit code kIo: the machine failed to read, write or sync.
absl::Status IoError(absl::string_view message);

}  // namespace eps

#endif  // EPS_BASE_EXIT_CODE_H_
