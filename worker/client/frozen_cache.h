#ifndef EPS_WORKER_CLIENT_FROZEN_CACHE_H_
#define EPS_WORKER_CLIENT_FROZEN_CACHE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/ids.h"
#include "compression/codec.h"

namespace eps {

// The encoded weights of frozen chunks. They never change during a job, so a worker fetches what it
// keeps here only once. The first weights that fit stay: each stage is used once on the way up and
// once on the way down, and to replace one by another would save nothing. Thread-compatible.
class FrozenCache {
 public:
  // Keeps at most `most_bytes`; 0 keeps nothing.
  explicit FrozenCache(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Returns the weights of a chunk, encoded along `axis`; nullopt if they are not kept.
  std::optional<Bytes> Find(ChunkId chunk, Axis axis) const {
    const auto it = kept_.find({chunk.value(), axis});
    return it == kept_.end() ? std::nullopt : std::make_optional(it->second);
  }

  // Keeps `weights` if they fit beside what is kept.
  void Keep(ChunkId chunk, Axis axis, const Bytes& weights) {
    if (weights.size() > most_bytes_ - bytes_) return;
    if (kept_.emplace(std::make_pair(chunk.value(), axis), weights).second) {
      bytes_ += weights.size();
    }
  }

 private:
  const uint64_t most_bytes_;
  uint64_t bytes_ = 0;
  std::map<std::pair<uint32_t, Axis>, Bytes> kept_;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_FROZEN_CACHE_H_
