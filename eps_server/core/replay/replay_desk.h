#ifndef EPS_SERVER_CORE_REPLAY_REPLAY_DESK_H_
#define EPS_SERVER_CORE_REPLAY_REPLAY_DESK_H_

// The contribution log (docs/protocol.md). A shard logs whatever counts before it tells anybody, so
// a shard that dies returns to where it stood, in the same term, and nobody rolls back. A replay
// applies the entries in their order, as fast as the state follows.

#include <deque>
#include <functional>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "eps/v1/log.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "storage/cuts/cut.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which outlive it.
class ReplayDesk {
 public:
  // Applies one entry. Returns false if the state has to follow first: the entry is tried again
  // later. DataLoss if the entry does not fit the state.
  using ApplyFn = std::function<absl::StatusOr<bool>(const v1::LogFact&, const LogEntry&)>;

  ReplayDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox, ApplyFn apply);

  // Starts the log of a term.
  void On(const internal_event::BorderOpened& e);
  void On(const internal_event::SessionChanged& e);
  void On(const internal_event::LogFound& e);
  // The base of the log is restored: reads the log. REQUIRES a replay.
  void On(const internal_event::StateRestored& e);
  // Continues to write the log that was replayed. The facts say already that the replay is over.
  void On(const internal_event::ReplayEnded& e);
  // Returns false, and does nothing, if the call is not one of this desk.
  bool On(const event::OpDone& e);

  // Appends an entry. REQUIRES ShardFacts::logging.
  void Log(uint64_t step, const v1::LogFact& fact, Bytes payload, Bytes residual);
  // Applies what can be applied now. REQUIRES a replay.
  void Pump();

  bool idle() const { return writing_.empty() && !reading_.has_value(); }

 private:
  void LogSession();

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  const ApplyFn apply_;
  std::set<OpId> writing_;        // entries that are not durable yet, and the start of the log
  std::optional<OpId> reading_;   // in flight
  FoundLog log_;                  // that is replayed
  std::deque<LogEntry> entries_;  // read, and not applied yet
  bool ended_ = false;            // there is nothing more to read
  // The replay passed a border with a cut, whose session entry may be missing in the log.
  bool owes_session_ = false;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_REPLAY_REPLAY_DESK_H_
