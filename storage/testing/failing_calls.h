#ifndef EPS_STORAGE_TESTING_FAILING_CALLS_H_
#define EPS_STORAGE_TESTING_FAILING_CALLS_H_

// For tests of real files: system calls that fail on demand. A program that links this library gets
// its open, pread, pwrite, fsync and so on instead of those of the C library and liburing.
// Transfers of io_uring are changed at submission, so that the kernel itself completes them with an
// error or short: inline functions read the completions, and nothing can replace those.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eps {

enum class CallFault : uint8_t {
  kNone,
  kIoError,
  kNoSpace,
  kBadFile,  // io_uring gets another descriptor
  kInvalid,
  kInterrupted,
  kAgain,
  kHalf,     // moves half of the blocks
  kPiece,    // moves less than a block
  kNothing,  // moves nothing, without an error
};
const char* NameOf(CallFault fault);
// Returns the errno of the fault; 0 if it has none.
int ErrnoOf(CallFault fault);

// Says which call fails, and how.
struct CallPlan {
  std::string call;  // "open"; "uring write" for a transfer of io_uring
  uint64_t n = 0;    // from 1
  CallFault fault = CallFault::kNone;
  bool lasts = false;  // all later calls fail too
};
// Counts of the calls since BeginFailing.
struct CallReport {
  std::map<std::string, uint64_t> counts;  // by call
  uint64_t failed = 0;
};

// While it lives, counts the calls of all threads and fails them as planned. One at a time.
void BeginFailing(std::vector<CallPlan> plans);
CallReport EndFailing();

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_FAILING_CALLS_H_
