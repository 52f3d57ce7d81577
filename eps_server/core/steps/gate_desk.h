#ifndef EPS_SERVER_CORE_STEPS_GATE_DESK_H_
#define EPS_SERVER_CORE_STEPS_GATE_DESK_H_

// The gates of a job, on the lead: it takes them from their holders, tells every shard the lowest
// one, and lets servers that drain end at a border that every shard has a cut of
// (docs/durability.md, "A server that is stopped").

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/drivers/job_standing.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/steps/gate_table.h"
#include "eps_server/core/wait_page.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which outlive it. Only the lead shard has one.
class GateDesk {
 public:
  GateDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox);

  // Continues in a new term with the gates of `before`. Its callers were refused, its timer ended.
  void Continue(const GateDesk& before);

  // Answers once every shard has the change.
  void On(const event::Gate& e);
  // Lifts the gate of a driver that is gone, and holds the job while the board does.
  void On(const event::Standing& e);
  void On(const event::LinkDown& e);
  void On(const event::Timer& e);
  // A shard has the state with which a term opens. It is told the gate before the term opens.
  void OnImported(ShardId from);
  void OnGateSet(ShardId from, const v1::GateSet& message);
  // Sends a shard what it may have missed.
  void On(const internal_event::ShardReached& e) { Send(e.shard); }
  void On(const internal_event::ShardDrains& e);
  void On(const internal_event::BorderOpened&) { LetEnd(); }
  void On(const internal_event::CutEverywhere&) { LetEnd(); }

  void Closed(StreamId stream);
  // Refuses the callers that wait: the job failed, or the term is over.
  void EndWork(const absl::Status& why);
  void Waits(WaitPage* page) const;
  // Adds the gates, and the shards that drain.
  void FillStatus(v1::StatusReply* status) const;

 private:
  // A call of Control.Gate that waits for the shards.
  struct Caller {
    StreamId stream;
    std::string holder;
    uint64_t revision = 0;
    uint64_t since_ms = 0;
    bool lapses = false;
  };

  absl::Status Check(const event::Gate& e) const;
  absl::Status CheckDriver(const DriverLease& lease) const;
  // Tells everybody that the table has changed.
  void Changed();
  // Holds the job at a border that every shard has a cut of.
  void HoldForBoard();
  // Sets the timer for the next gate that ends by itself.
  void Arm();
  void Send(ShardId shard);
  void AnswerCallers();
  // Returns the first border that no shard has passed and that gets a cut.
  uint64_t NextCutBorder() const;
  // Returns the border at which a shard that begins to drain now can end.
  uint64_t DrainBorder() const;
  // Lets those shards end that drain and are needed no longer.
  void LetEnd();
  bool MayEnd(ShardId shard) const;
  // Returns whether the holder may read the border of its gate. The board never does, nor does a
  // driver whose lease is over.
  bool Reads(const std::string& holder) const;

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  GateTable table_;
  JobStanding standing_ = JobStanding::kOffTheBoard;
  bool outlives_driver_ = false;      // the driver's gate stays when its lease ends
  std::map<ShardId, bool> draining_;  // whether it was told to end
  std::set<ShardId> gone_;            // their links are down
  std::vector<Caller> callers_;
  std::optional<TimerId> timer_;  // until the next gate ends
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_GATE_DESK_H_
