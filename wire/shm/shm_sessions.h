#ifndef EPS_WIRE_SHM_SHM_SESSIONS_H_
#define EPS_WIRE_SHM_SHM_SESSIONS_H_

// A worker's connection to a server's shared memory, as the server sees it: one for each of its
// Fetch and Push streams. The worker may be hostile: it changes its own segment at any time.

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "eps/v1/data.pb.h"
#include "wire/shm/shared_arena.h"
#include "wire/shm/shared_segment.h"

namespace eps {

// Ranges of weights that a worker may hold at a time. Its own segment has a word for each: when it
// is done with hold N, it writes N to word N % kShmHolds.
inline constexpr uint64_t kShmHolds = 8192;
inline constexpr uint64_t kShmHoldBytes = kShmHolds * sizeof(uint64_t);

// One session. Thread-safe.
class ShmSession {
 public:
  // `own` is the worker's segment; `weights` is null in a session for gradients.
  ShmSession(uint64_t id, std::shared_ptr<SharedSegment> own,
             std::shared_ptr<SharedArena> weights_or_null)
      : id_(id), own_(std::move(own)), weights_(std::move(weights_or_null)) {}

  uint64_t id() const { return id_; }
  const SharedSegment& own() const { return *own_; }
  const SharedSegment* weights_or_null() const {
    return weights_ == nullptr ? nullptr : &weights_->segment();
  }

  // Fills *range with the place of a payload and keeps it until the worker is done with it. Returns
  // false, for payload that has to travel in messages, if it does not lie in the segment of
  // weights, the worker holds too many ranges, or the session has ended.
  bool Hold(const Bytes& payload, v1::SharedRange* range) EPS_EXCLUDES(mu_);
  // Drops the ranges that the worker is done with.
  void Collect() EPS_EXCLUDES(mu_);
  // Returns the worker's bytes at a range that it named, which may change while they are read.
  // InvalidArgument if the range does not lie in its segment.
  absl::StatusOr<absl::Span<const uint8_t>> Gradients(const v1::SharedRange& range) const;
  // The worker reads no more: drops all ranges.
  void End() EPS_EXCLUDES(mu_);

 private:
  bool IsDone(uint64_t hold) const;
  void CollectLocked() EPS_REQUIRES(mu_);

  const uint64_t id_;
  const std::shared_ptr<SharedSegment> own_;
  const std::shared_ptr<SharedArena> weights_;
  Mutex mu_;
  std::map<uint64_t, Bytes> held_ EPS_GUARDED_BY(mu_);  // by hold, at most kShmHolds
  uint64_t last_hold_ EPS_GUARDED_BY(mu_) = 0;
  bool ended_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_WIRE_SHM_SHM_SESSIONS_H_
