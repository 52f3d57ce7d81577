#ifndef EPS_BASE_MACHINE_RANGE_MAP_H_
#define EPS_BASE_MACHINE_RANGE_MAP_H_

// Gives out parts of a block of memory by their places.

#include <cstdint>
#include <map>

#include "absl/types/optional.h"

namespace eps {

// Ranges of whole pages in [0, bytes): the first gap that fits is taken, and neighbouring gaps
// join. Thread-compatible.
class RangeMap {
 public:
  explicit RangeMap(uint64_t bytes) {
    if (bytes > 0) gaps_[0] = bytes;
  }

  // Returns the size of a range for `bytes`. REQUIRES that it fits into 64 bits.
  static uint64_t SizeOf(uint64_t bytes);
  // Returns the begin of a range of at least `bytes` bytes; nullopt if no gap has so many.
  absl::optional<uint64_t> Take(uint64_t bytes);
  // REQUIRES a range that Take returned.
  void Return(uint64_t begin);

 private:
  std::map<uint64_t, uint64_t> gaps_;   // begin to size
  std::map<uint64_t, uint64_t> taken_;  // begin to size
};

}  // namespace eps

#endif  // EPS_BASE_MACHINE_RANGE_MAP_H_
