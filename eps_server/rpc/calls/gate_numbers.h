#ifndef EPS_SERVER_RPC_CALLS_GATE_NUMBERS_H_
#define EPS_SERVER_RPC_CALLS_GATE_NUMBERS_H_

#include <algorithm>
#include <cstdint>

#include "base/mutex.h"

namespace eps {

// The numbers with which drivers number their requests to Control.Gate (docs/protocol.md, G22).
// Each driver that creates or finds the job gets a range of its own, after those of all drivers
// before: what a killed driver sent arrives with a lower number than anything of the next one.
// Thread-safe.
class GateNumbers {
 public:
  // Returns the number after which the range of the next driver begins.
  uint64_t NextRange() EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    last_ = (last_ / kRange + 1) * kRange;
    return last_;
  }
  // A request has this number. A driver that outlives the lead's process goes on with the range
  // that it got from the process before.
  void Saw(uint64_t number) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    last_ = std::max(last_, number);
  }

 private:
  static constexpr uint64_t kRange = uint64_t{1} << 32;

  Mutex mu_;
  uint64_t last_ EPS_GUARDED_BY(mu_) = 0;  // the highest number that was given or seen
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_GATE_NUMBERS_H_
