#ifndef EPS_BASE_IDS_H_
#define EPS_BASE_IDS_H_

// Strong integer ids: the compiler refuses an id of another kind, and every conversion to or from a
// plain integer is explicit.

#include <cstdint>
#include <functional>
#include <ostream>
#include <utility>

namespace eps {

// A plain value type. `Tag` is an incomplete type that only names the kind.
template <class Tag, class Rep = uint64_t>
class Id {
 public:
  using rep = Rep;
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  // The following id, for counting versions, steps and dense indices.
  constexpr Id Next() const { return Id(value_ + 1); }

  friend constexpr bool operator==(Id a, Id b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(Id a, Id b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(Id a, Id b) { return a.value_ < b.value_; }
  friend constexpr bool operator>(Id a, Id b) { return a.value_ > b.value_; }
  friend constexpr bool operator<=(Id a, Id b) { return a.value_ <= b.value_; }
  friend constexpr bool operator>=(Id a, Id b) { return a.value_ >= b.value_; }
  friend std::ostream& operator<<(std::ostream& os, Id id) { return os << +id.value_; }
  template <class H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_ = 0;
};

// Dense indices in the job spec's own order.
using TensorId = Id<struct TensorTag, uint32_t>;
using GroupId = Id<struct GroupTag, uint32_t>;
using ChunkId = Id<struct ChunkTag, uint32_t>;
using StageId = Id<struct StageTag, uint32_t>;
using PartId = Id<struct PartTag, uint32_t>;
using ShardId = Id<struct ShardTag, uint32_t>;

// First 8 bytes of the job spec's digest, big-endian.
using JobId = Id<struct JobTag, uint64_t>;
// Incarnation of a job's state; increases only when the state returns to an earlier version.
using Term = Id<struct TermTag, uint64_t>;
// Data index. Step 0 is before any data; training runs steps 1 … training.steps.
using Step = Id<struct StepTag, uint64_t>;
// The state after that many applied updates; step t reads version t-1 until a step is skipped.
using Version = Id<struct VersionTag, uint64_t>;

// Names of things that live inside one process.
using StreamId = Id<struct StreamTag, uint64_t>;
using OpId = Id<struct OpTag, uint64_t>;
using TimerId = Id<struct TimerTag, uint64_t>;

}  // namespace eps

namespace std {
template <class Tag, class Rep>
struct hash<eps::Id<Tag, Rep>> {
  size_t operator()(eps::Id<Tag, Rep> id) const { return hash<Rep>()(id.value()); }
};
}  // namespace std

#endif  // EPS_BASE_IDS_H_
