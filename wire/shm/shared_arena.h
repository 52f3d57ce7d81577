#ifndef EPS_WIRE_SHM_SHARED_ARENA_H_
#define EPS_WIRE_SHM_SHARED_ARENA_H_

// Gives out the memory of a shared segment in ranges.

#include <cstdint>
#include <memory>
#include <utility>

#include "base/machine/range_map.h"
#include "base/mutex.h"
#include "wire/shm/shared_segment.h"

namespace eps {

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
