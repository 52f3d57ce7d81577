#ifndef EPS_SERVER_SHELL_PEER_MAILBOX_H_
#define EPS_SERVER_SHELL_PEER_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <functional>

#include "base/mutex.h"
#include "eps/v1/shard.pb.h"

namespace eps {

// Sends messages to another shard over its link, and keeps them while the link is down.
// Thread-safe.
class PeerMailbox {
 public:
  // Must neither block nor call the mailbox, which holds its lock meanwhile. A message is lost if
  // the link breaks under it; the core repeats what matters once the link is up again.
  using Writer = std::function<void(const v1::ShardMessage&)>;

  // The most messages that are kept. This is ample: the core sends a few messages per step, and no
  // step can proceed without the link.
  static constexpr size_t kMaxKept = 4096;

  // Writes the message, or keeps it until Open. Drops the oldest message if kMaxKept are kept.
  void Send(v1::ShardMessage message);
  // Directs messages to `writer` from now on, beginning with those that were kept. Writes a
  // Register before the others, because it must be the first message of a link. Returns a ticket
  // for Close.
  uint64_t Open(Writer writer);
  // Reports that the link of this ticket is gone; messages are kept again. Returns false, and does
  // nothing, if the link was closed or replaced before.
  bool Close(uint64_t ticket);

 private:
  Mutex mu_;
  std::deque<v1::ShardMessage> kept_ EPS_GUARDED_BY(mu_);
  Writer writer_ EPS_GUARDED_BY(mu_);
  uint64_t ticket_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_PEER_MAILBOX_H_
