#ifndef EPS_STORAGE_TESTING_SIMULATED_CALLS_H_
#define EPS_STORAGE_TESTING_SIMULATED_CALLS_H_

// The calls of a simulated disk: counted, and failed or cut off as a test planned.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eps {

enum class DiskCall {
  kCreateFolder,
  kList,
  kCreateFile,
  kOpen,
  kRemove,
  kRename,
  kTakeLock,
  kFreeBytes,
  kRead,
  kWrite,
  kSync,
};
inline constexpr int kDiskCalls = static_cast<int>(DiskCall::kSync) + 1;

enum class DiskFault {
  kIoError,     // Internal, EIO; nothing was done
  kShortWrite,  // as kIoError, but the first half of the sectors was written
  kNoSpace,     // ENOSPC: ResourceExhausted, for transfers and syncs Internal; nothing was done
};

// A call with its arguments, as the disk sees it.
struct DiskCallSite {
  DiskCall call;
  std::string path;
  uint64_t offset = 0;  // of a transfer
  uint64_t bytes = 0;   // likewise
  bool fails = false;
};

// Returns the error of a call that fails with `fault`.
absl::Status FaultStatus(DiskCall call, DiskFault fault, const std::string& where);

// Counts calls and says which of them fail. Thread-compatible.
class PlannedCalls {
 public:
  // The outcome of a call as planned.
  struct Entry {
    std::optional<DiskFault> fault;
    bool cut = false;  // the power fails in the middle of it
  };

  // `watch`, if not null, is called for every counted call.
  explicit PlannedCalls(std::function<void(const DiskCallSite&)> watch)
      : watch_(std::move(watch)) {}

  // Counts a call.
  Entry Enter(DiskCallSite site);

  // Fails the n-th call of the kind from now on; 1 is the next.
  void Fail(DiskCall call, uint64_t n, DiskFault fault);
  // Cuts the power in the middle of the n-th call of any kind from now on.
  void CutAt(uint64_t n, uint64_t seed);
  // Forgets a planned cut.
  void EndCut() { cut_at_ = 0; }
  uint64_t cut_seed() const { return cut_seed_; }

  uint64_t count(DiskCall call) const { return calls_[static_cast<size_t>(call)]; }
  uint64_t count() const { return all_calls_; }  // of all kinds

 private:
  // A fault at a count of calls of its kind.
  struct PlannedFault {
    uint64_t at;
    DiskFault fault;
  };

  const std::function<void(const DiskCallSite&)> watch_;
  uint64_t cut_at_ = 0;  // the count of all calls for the cut; 0 plans none
  uint64_t cut_seed_ = 0;
  uint64_t all_calls_ = 0;
  std::array<uint64_t, kDiskCalls> calls_ = {};
  std::array<std::vector<PlannedFault>, kDiskCalls> faults_;
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_SIMULATED_CALLS_H_
