#include "storage/csd/link_bytes.h"

#include <algorithm>

namespace eps {

const char* NameOf(Link link) {
  static constexpr const char* kNames[kLinks] = {"host", "internal", "media"};
  return kNames[static_cast<size_t>(link)];
}

const char* NameOf(Direction direction) {
  return direction == Direction::kRead ? "read" : "written";
}

const char* NameOf(Purpose purpose) {
  static constexpr const char* kNames[kPurposes] = {"state", "gradient", "weights", "padding",
                                                    "check", "move",     "control"};
  return kNames[static_cast<size_t>(purpose)];
}

uint64_t LinkBytes::of(Link link, Direction direction) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < kPurposes; ++i) sum += of(link, direction, static_cast<Purpose>(i));
  return sum;
}

void LinkBytes::Add(const LinkBytes& other) {
  for (size_t i = 0; i < kCounters; ++i) bytes_[i] += other.bytes_[i];
}

LinkBytes LinkBytes::WithoutHost() const {
  LinkBytes other = *this;
  constexpr size_t kFirstOther = IndexOf(Link::kInternal, Direction::kRead, Purpose::kState);
  std::fill_n(other.bytes_.begin(), kFirstOther, 0);
  return other;
}

LinkBytes LinkBytes::Since(const LinkBytes& earlier) const {
  LinkBytes result;
  for (size_t i = 0; i < kCounters; ++i) result.bytes_[i] = bytes_[i] - earlier.bytes_[i];
  return result;
}

LinkBytes LinkLedger::Read() const {
  LinkBytes result;
  for (size_t i = 0; i < counters_.size(); ++i) {
    result.bytes_[i] = counters_[i].load(std::memory_order_relaxed);
  }
  return result;
}

}  // namespace eps
