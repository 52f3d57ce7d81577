#ifndef EPS_SERVER_CORE_FETCH_ENCODED_COPIES_H_
#define EPS_SERVER_CORE_FETCH_ENCODED_COPIES_H_

// Holds weights that were quantized just in time until every worker has fetched them, so that each
// chunk is encoded once per visit, however many workers make it. A copy is dropped when the last
// worker has it, when its chunk is updated, or when newer visits evict it.

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/visits.h"

namespace eps {

// Encoded weights, and their CRC32C, which the first sender computes. Copies share both.
struct EncodedCopy {
  explicit EncodedCopy(Bytes encoded)
      : bytes(std::move(encoded)), crc(std::make_shared<SharedCrc>(bytes)) {}
  Bytes bytes;
  std::shared_ptr<SharedCrc> crc;
};

// Thread-compatible.
class EncodedCopies {
 public:
  // Identifies a copy; the same chunk may be encoded for several visits.
  struct Key {
    Visit visit;
    ChunkId chunk;
    Axis axis = Axis::kRow;
    friend bool operator<(const Key& a, const Key& b) {
      return std::tie(a.visit, a.chunk, a.axis) < std::tie(b.visit, b.chunk, b.axis);
    }
  };

  // Keeps copies of at most `max_visits` visits.
  explicit EncodedCopies(size_t max_visits) : max_visits_(max_visits) {}

  // Returns the copy at `version`, or null.
  const EncodedCopy* Find(const Key& key, Version version) const {
    const auto it = copies_.find(key);
    return it == copies_.end() || it->second.version != version ? nullptr : &it->second.encoded;
  }
  // Keeps a copy, unless `served` (the streams that have it already) counts `workers` streams.
  void Put(const Key& key, Version version, EncodedCopy encoded, std::set<StreamId> served,
           size_t workers) {
    if (served.size() >= workers) return;
    copies_.insert_or_assign(key, Copy{version, std::move(encoded), std::move(served)});
    for (const Visit& visit : visits_) {
      if (visit == key.visit) return;
    }
    visits_.push_back(key.visit);
    if (visits_.size() <= max_visits_) return;
    const Visit oldest = visits_.front();
    auto it = copies_.lower_bound({oldest, ChunkId(0), Axis{}});
    while (it != copies_.end() && it->first.visit == oldest) it = copies_.erase(it);
    visits_.pop_front();
  }
  // Notes that `stream` has the copy; drops it after the last of `workers`.
  void Served(const Key& key, StreamId stream, size_t workers) {
    const auto it = copies_.find(key);
    if (it == copies_.end()) return;
    it->second.served.insert(stream);
    if (it->second.served.size() >= workers) copies_.erase(it);
  }
  // Drops the copies of a chunk that is about to be updated.
  void DropChunk(ChunkId chunk) {
    for (const Visit& visit : visits_) {
      for (const Axis axis : {Axis::kRow, Axis::kColumn}) copies_.erase({visit, chunk, axis});
    }
  }

 private:
  // Encoded weights and the streams that have them.
  struct Copy {
    Version version;
    EncodedCopy encoded;
    std::set<StreamId> served;
  };

  const size_t max_visits_;
  std::map<Key, Copy> copies_;
  std::deque<Visit> visits_;  // oldest first
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_FETCH_ENCODED_COPIES_H_
