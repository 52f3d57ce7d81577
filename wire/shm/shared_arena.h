#ifndef EPS_WIRE_SHM_SHARED_ARENA_H_
#define EPS_WIRE_SHM_SHARED_ARENA_H_

// Gives out the memory of a shared segment in ranges.

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "wire/shm/shared_segment.h"

namespace eps {

// Ranges of whole pages in [0, bytes): the first gap that fits is taken, and neighbouring gaps
// join. Thread-compatible.
class RangeMap {
 public:
  explicit RangeMap(uint64_t bytes) {
    if (bytes > 0) gaps_[0] = bytes;
  }

  // Returns the begin of a range of at least `bytes` bytes; nullopt if no gap has so many.
  absl::optional<uint64_t> Take(uint64_t bytes);
  // REQUIRES a range that Take returned.
  void Return(uint64_t begin);

 private:
  std::map<uint64_t, uint64_t> gaps_;   // begin to size
  std::map<uint64_t, uint64_t> taken_;  // begin to size
};

// A segment whose memory one process gives out. Each range keeps the arena alive. Thread-safe.
class SharedArena : public std::enable_shared_from_this<SharedArena> {
 public:
  explicit SharedArena(std::shared_ptr<SharedSegment> segment)
      : segment_(std::move(segment)), ranges_(segment_->size()) {}

  const SharedSegment& segment() const { return *segment_; }
  // As MemorySource::Allocate.
  std::shared_ptr<uint8_t> Allocate(size_t size) EPS_EXCLUDES(mu_);

 private:
  const std::shared_ptr<SharedSegment> segment_;
  Mutex mu_;
  RangeMap ranges_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_WIRE_SHM_SHARED_ARENA_H_
