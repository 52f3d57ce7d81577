#include "eps_server/shell/peer_mailbox.h"

#include <algorithm>
#include <utility>

namespace eps {

void PeerMailbox::Send(v1::ShardMessage message) {
  MutexLock lock(&mu_);
  if (writer_) {
    writer_(message);
    return;
  }
  if (kept_.size() == kMaxKept) kept_.pop_front();
  kept_.push_back(std::move(message));
}

uint64_t PeerMailbox::Open(Writer writer) {
  MutexLock lock(&mu_);
  writer_ = std::move(writer);
  std::stable_partition(kept_.begin(), kept_.end(),
                        [](const v1::ShardMessage& m) { return m.has_register_(); });
  for (const v1::ShardMessage& message : kept_) writer_(message);
  kept_.clear();
  return ++ticket_;
}

bool PeerMailbox::Close(uint64_t ticket) {
  MutexLock lock(&mu_);
  if (ticket != ticket_ || !writer_) return false;
  writer_ = nullptr;
  return true;
}

}  // namespace eps
