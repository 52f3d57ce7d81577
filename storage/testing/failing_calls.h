#ifndef EPS_STORAGE_TESTING_FAILING_CALLS_H_
#define EPS_STORAGE_TESTING_FAILING_CALLS_H_

// For tests of real files: calls of the operating system that fail when they are told to. A program
// that links this has its own open, pread, pwrite, fsync and so on in front of those of the C
// library, and of liburing. What io_uring moves is changed where it is handed over, so that the
// kernel itself completes it with an error or with less: completions are read by inline functions,
// which nothing can be put in front of.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eps {

enum class CallFault : uint8_t {
  kNone,
  kIoError,
  kNoSpace,
  kBadFile,  // of io_uring, which gets another descriptor
  kInvalid,
  kInterrupted,
  kAgain,
  kHalf,     // moves half of the blocks
  kPiece,    // moves less than a block
  kNothing,  // moves nothing, without an error
};
const char* NameOf(CallFault fault);
// The errno that it stands for; 0: none.
int ErrnoOf(CallFault fault);

struct CallPlan {
  std::string call;  // "open"; "uring write" of what io_uring moves
  uint64_t n = 0;    // from 1
  CallFault fault = CallFault::kNone;
  bool lasts = false;  // and all behind it
};
struct CallReport {
  std::map<std::string, uint64_t> counts;  // by call
  uint64_t failed = 0;
};

// Calls of all threads are counted, and fail as planned, from here on. One at a time.
void BeginFailing(std::vector<CallPlan> plans);
CallReport EndFailing();

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_FAILING_CALLS_H_
