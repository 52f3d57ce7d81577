#include "wire/shm/shm_sessions.h"

#include "absl/strings/str_cat.h"

namespace eps {

bool ShmSession::Hold(const Bytes& payload, v1::SharedRange* range) {
  if (weights_ == nullptr || payload.empty()) return false;
  const absl::optional<uint64_t> offset =
      weights_->segment().OffsetOf({payload.data(), payload.size()});
  if (!offset.has_value()) return false;
  MutexLock lock(&mu_);
  CollectLocked();
  const bool word_is_free = held_.empty() || last_hold_ + 1 - held_.begin()->first < kShmHolds;
  if (ended_ || !word_is_free) return false;
  held_.emplace(++last_hold_, payload);
  range->set_session(id_);
  range->set_offset(*offset);
  range->set_bytes(payload.size());
  range->set_hold(last_hold_);
  return true;
}

bool ShmSession::IsDone(uint64_t hold) const {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(own_->data());
  return __atomic_load_n(words + hold % kShmHolds, __ATOMIC_ACQUIRE) == hold;
}

void ShmSession::CollectLocked() {
  for (auto it = held_.begin(); it != held_.end();) {
    it = IsDone(it->first) ? held_.erase(it) : std::next(it);
  }
}

void ShmSession::Collect() {
  MutexLock lock(&mu_);
  CollectLocked();
}

absl::StatusOr<absl::Span<const uint8_t>> ShmSession::Gradients(
    const v1::SharedRange& range) const {
  if (weights_ != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("session ", range.session(), " of shared memory is for weights"));
  }
  return own_->At(range.offset(), range.bytes());
}

void ShmSession::End() {
  MutexLock lock(&mu_);
  ended_ = true;
  held_.clear();
}

}  // namespace eps
