#ifndef EPS_SERVER_CORE_CUTS_TERM_DESK_H_
#define EPS_SERVER_CORE_CUTS_TERM_DESK_H_

// How the shards of a durable job agree on the cut that they continue from (docs/protocol.md):
// Register, promise of a new term, quiesce, youngest common cut, Restore, open.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/cuts/recovery.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/wait_page.h"
#include "storage/cuts/cut.h"

namespace eps {

// For one thread. Borrows facts and outbox, and on the lead `recovery`, which outlive it. On a
// shard that is not durable it only registers.
class TermDesk {
 public:
  // `recovery` is null on shards other than the lead, and where nothing is durable.
  TermDesk(const ShardFacts* facts, Recovery* recovery_or_null, Outbox* outbox)
      : facts_(*facts), recovery_(recovery_or_null), outbox_(outbox) {}

  // Continues in the facts' term with what `before` knew; a promise of the term comes first.
  void Continue(const TermDesk& before);

  void On(const event::Opened& e);
  // Returns false, and does nothing, if the call is not one of this desk.
  bool On(const event::OpDone& e);
  // Returns whether the message is one that this desk handles, whatever its term.
  bool OnMessage(const event::FromShard& e);
  void On(const internal_event::RollBack& e);
  // REQUIRES the lead.
  void On(const event::RestartImport&) { StartTerm(); }
  void On(const internal_event::BorderOpened& e);
  // Registers once the shard knows what it has.
  void On(const internal_event::LeadReached&) { Register(); }
  // Asks the lead for a cut after every step, or for no more than usual.
  void On(const internal_event::CutWanted& e);
  void On(const internal_event::DrainBegan&) { Register(); }
  void On(const internal_event::ReplayOpened& e);
  void On(const internal_event::SessionReplayed& e);

  // Whether the shard knows what its disk holds.
  bool recovered() const { return recovered_; }
  // Whether this shard asked for a new term.
  bool rolls_back() const { return rolls_back_; }
  bool idle() const { return ops_.empty(); }
  std::vector<uint64_t> Incarnations() const { return recovery_->Incarnations(); }
  // Names what a RECOVERING shard waits for; empty if this desk knows of nothing.
  std::string WaitsFor() const;
  uint64_t recovering_since_ms() const { return recovering_since_ms_; }

 private:
  enum class Kind { kLook, kPromise, kQuiesce, kRecover, kRestore };  // kLook: right after Opened
  // A backend call in flight.
  struct Op {
    Kind kind;
    std::optional<CutId> cut;  // kRestore; nullopt: everything is imported again
  };

  void Start(Kind kind, Request request, std::optional<CutId> cut = std::nullopt);
  void Register();
  void OnRegister(ShardId shard, Term term, const v1::Register& message);
  void Repeat(ShardId shard);
  void StartTerm();
  void OnNewTerm(Term term);
  void OnPromiseDone();
  void OnRecovered(Kind kind, const RecoveredState& found);
  void OnPromised(ShardId shard, const v1::Promised& message);
  void OnRestore(const v1::Restore& message);
  void OnRestored(const std::optional<CutId>& cut, const CutContent& content);
  void SendPromised();

  const ShardFacts& facts_;
  Recovery* const recovery_;
  Outbox* const outbox_;
  std::map<OpId, Op> ops_;              // in flight
  bool recovered_ = false;              // it knows what it has
  Term promised_;                       // durably
  std::vector<CutBorder> cuts_;         // that the shard has, as of its promise
  std::optional<v1::Promised> answer_;  // to the NewTerm of this term
  std::optional<v1::Restore> chosen_;   // on the lead: what it told the shards
  bool restoring_ = false;
  bool rolls_back_ = false;  // the lead was asked for a new term
  bool over_ = false;        // a later term begins
  bool wants_cut_ = false;   // a kept cut is damaged
  uint64_t recovering_since_ms_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_CUTS_TERM_DESK_H_
