#ifndef EPS_SERVER_CORE_STEPS_LINK_DESK_H_
#define EPS_SERVER_CORE_STEPS_LINK_DESK_H_

// The links between the lead and the other shards of a job whose state is nowhere durable: such a
// job fails when a shard stays away, or returns without its memory.

#include <cstdint>
#include <map>

#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"

namespace eps {

// For one thread. Borrows facts and outbox, which outlive it.
class LinkDesk {
 public:
  LinkDesk(const ShardFacts* facts, Outbox* outbox) : facts_(*facts), outbox_(outbox) {}

  void On(const event::LinkUp& e);
  void On(const event::LinkDown& e);
  void On(const event::Timer& e);
  // For the lead: a shard presents itself.
  void OnRegister(ShardId from, const v1::Register& message);

 private:
  const ShardFacts& facts_;
  Outbox* const outbox_;
  std::map<ShardId, TimerId> timers_;         // of links that are down
  std::map<ShardId, uint64_t> incarnations_;  // on the lead: the processes that registered
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_LINK_DESK_H_
