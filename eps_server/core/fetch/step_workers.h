#ifndef EPS_SERVER_CORE_FETCH_STEP_WORKERS_H_
#define EPS_SERVER_CORE_FETCH_STEP_WORKERS_H_

// Counts the worker processes that fetch in the open step, as their begins name them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/ids.h"

namespace eps {

// Thread-compatible. Every call takes logarithmic time.
class StepWorkers {
 public:
  explicit StepWorkers(uint32_t parts) : nonces_(parts, 0), unknown_(parts) {}

  // The process `nonce` begins a step with the part. 0: a process without a name.
  void Begin(PartId part, uint64_t nonce) {
    uint64_t& before = nonces_[part.value()];
    if (before == nonce) return;
    if (before == 0) {
      --unknown_;
    } else if (--parts_of_[before] == 0) {
      parts_of_.erase(before);
    }
    if (nonce == 0) {
      ++unknown_;
    } else {
      ++parts_of_[nonce];
    }
    before = nonce;
  }
  // Returns the number of processes, at least 1. A part whose process is unknown counts as one.
  size_t count() const { return std::max<size_t>(1, parts_of_.size() + unknown_); }
  size_t parts() const { return nonces_.size(); }

 private:
  std::vector<uint64_t> nonces_;           // by part: the process that began with it; 0: unknown
  std::map<uint64_t, uint32_t> parts_of_;  // by process: its number of parts
  size_t unknown_;                         // parts without a process
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_FETCH_STEP_WORKERS_H_
