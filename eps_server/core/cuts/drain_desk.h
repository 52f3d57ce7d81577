#ifndef EPS_SERVER_CORE_CUTS_DRAIN_DESK_H_
#define EPS_SERVER_CORE_CUTS_DRAIN_DESK_H_

// A shard whose process is asked to end: it waits until nothing is lost with it
// (docs/durability.md, "A server that is stopped").

#include "eps_server/core/events.h"
#include "eps_server/core/internal_events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/wait_page.h"

namespace eps {

// For one thread. Borrows facts and outbox, which outlive it.
class DrainDesk {
 public:
  DrainDesk(const ShardFacts* facts, Outbox* outbox) : facts_(*facts), outbox_(outbox) {}

  // REQUIRES that the facts say that the shard drains. Asks the lead for a border, unless the
  // process may end at once.
  void On(const event::Drain& e);
  void On(const internal_event::MayEnd& e);
  // Lets the process end if waiting is of no use (any more). Call it when the state of the job or
  // its cuts have changed. Returns whether the process may end.
  bool Check();
  void Waits(WaitPage* page) const;

 private:
  const ShardFacts& facts_;
  Outbox* const outbox_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_CUTS_DRAIN_DESK_H_
