#ifndef EPS_SERVER_SHELL_PEER_MAILBOX_H_
#define EPS_SERVER_SHELL_PEER_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <functional>

#include "base/mutex.h"
#include "eps/v1/shard.pb.h"

namespace eps {

// Messages to another shard, whether its link is open or not: kept while it is not. Thread-safe.
class PeerMailbox {
 public:
  // Must not block and not call the mailbox; messages that it cannot deliver any more are lost,
  // as on any broken link (the core repeats what matters when the link is up again).
  using Writer = std::function<void(const v1::ShardMessage&)>;

  // What may be kept: the core sends a few messages per step, and no step goes on without the link.
  static constexpr size_t kMaxKept = 4096;

  // Writes the message, or keeps it until Open. Beyond kMaxKept the oldest one is dropped.
  void Send(v1::ShardMessage message);
  // From now on messages go to `writer`, first those that were kept: a Register before the others,
  // because it must be the first message of a link. Returns a ticket for Close.
  uint64_t Open(Writer writer);
  // The link of this ticket is gone. False, and nothing is done, if it was closed or another one
  // was opened since.
  bool Close(uint64_t ticket);

 private:
  Mutex mu_;
  std::deque<v1::ShardMessage> kept_ EPS_GUARDED_BY(mu_);
  Writer writer_ EPS_GUARDED_BY(mu_);
  uint64_t ticket_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_PEER_MAILBOX_H_
