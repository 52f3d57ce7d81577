#ifndef EPS_SERVER_CORE_CUTS_CUT_DESK_H_
#define EPS_SERVER_CORE_CUTS_CUT_DESK_H_

// Makes borders durable, and reads kept cuts again and again to find damage (docs/durability.md).

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "storage/cuts/cut.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which outlive it. Idle on shards that are not
// durable.
class CutDesk {
 public:
  CutDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
      : facts_(*facts), queries_(*queries), outbox_(outbox) {}

  // Returns false, and does nothing, if the call is not one of this desk.
  bool On(const event::OpDone& e);
  void On(const event::Timer& e);
  void On(const internal_event::ImportComplete& e);
  void On(const internal_event::BorderReached& e);
  void On(const internal_event::RecordsUpToDate&) { TryStart(); }
  void On(const internal_event::StepOpened& e);
  void On(const internal_event::Recorded& e);
  void On(const internal_event::CutEverywhere& e);
  void On(const internal_event::LeadReached& e);
  void On(const internal_event::StateRestored&) { unsaved_records_.clear(); }
  void On(const internal_event::LogFound& e) { last_durable_ = e.log.base; }
  // On the lead: its own cut counts again.
  void On(const internal_event::ReplayEnded&) { TellDurable(); }
  // Lets the backend reuse the room of older cuts: every shard has this one.
  void KeepFrom(const CutId& cut);

  // Whether no cut is in flight. A scrub does not count.
  bool idle() const { return cuts_.empty(); }

  // Stops scrubbing: the term is over.
  void EndTerm();

 private:
  // The imported state that a cut makes durable.
  struct Import {
    StreamId stream;
    v1::Imported border;
  };
  // A cut in flight.
  struct Cut {
    CutId id;
    std::optional<Import> import;
    bool heals = false;  // it began after damage was found
  };

  void TryStart();
  void Start(const CutBorder& border, std::optional<Import> import);
  void OnCut(const Cut& cut, const BackendDone& done);
  void StartScrub();
  void OnScrubbed(const BackendDone& done);
  // Makes the lead cut soon, or as usual.
  void WantCut(bool wanted);
  void TellDurable();

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  std::map<OpId, Cut> cuts_;                  // in flight
  std::vector<std::string> unsaved_records_;  // since the last cut, serialized
  std::optional<CutId> last_durable_;
  // When the cuts of this term began that some shard does not have yet.
  std::map<CutId, uint64_t> begun_ms_;
  bool wants_cut_ = false;              // a kept cut is damaged, and no later one has replaced it
  std::optional<OpId> scrub_;           // in flight
  std::optional<TimerId> scrub_timer_;  // until the next scrub
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_CUTS_CUT_DESK_H_
