#ifndef EPS_SERVER_CORE_TRUST_TRUST_DESK_H_
#define EPS_SERVER_CORE_TRUST_TRUST_DESK_H_

// The trust ratios of an optimizer that adapts (docs/protocol.md): measures the chunks of a decided
// step, and lets the step be updated once the lead has made the ratios of all norms.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps/v1/log.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/trust/trust_fold.h"
#include "optimizer/update_request.h"

namespace eps {

// For one thread. Borrows facts and outbox, which outlive it. Has no part in a job whose optimizer
// does not adapt.
class TrustDesk {
 public:
  TrustDesk(const ShardFacts* facts, Outbox* outbox);

  // Returns false, and does nothing, if the call is not one of this desk.
  bool On(const event::OpDone& e);
  void On(const internal_event::Measurable& e);
  void On(const internal_event::Decided& e);
  void On(const internal_event::StepOpened&);
  // Repeats the norms of the open step, if there is no Trust for it yet.
  void On(const internal_event::LeadReached& e);
  // Sends a shard what it may have missed. For the lead.
  void On(const internal_event::ShardReached& e);
  void On(const internal_event::ReplayEnded&) { Pump(); }
  // A message of a shard. Ignored on other shards than the lead.
  void OnMessage(const v1::TensorNorms& norms);
  // A message from the lead. Logs it if it is new.
  void OnMessage(const v1::Trust& trust);

  // Repeats what an earlier process logged.
  void Replay(const v1::Trust& trust);

  bool idle() const { return ops_.empty(); }
  // Returns the trust ratios of the open step; null if they are not known yet.
  const v1::Trust* OfOpenStep() const;
  // On the lead: the last Trust that it made, for the session; null if there is none.
  const v1::Trust* last() const { return last_.has_value() ? &*last_ : nullptr; }
  // Names what the trust ratios of the open step wait for; empty if for nothing.
  std::string WaitsFor() const;

 private:
  // A call of the backend in flight.
  struct Op {
    ChunkId chunk;
    uint64_t step;
  };

  void SendNorms();
  // On the lead: makes the ratios once it has all norms.
  void Pump();
  void Take(const v1::Trust& trust);

  const ShardFacts& facts_;
  Outbox* const outbox_;
  uint64_t trained_ = 0;                    // chunks that are not frozen
  std::map<OpId, Op> ops_;                  // in flight
  std::map<ChunkId, MeasureResult> norms_;  // of the open step
  std::map<uint64_t, v1::Trust> trusts_;    // by step, from the open one on
  std::optional<TrustFold> fold_;           // on the lead, of the last decision
  std::optional<v1::Trust> last_;           // on the lead: what fold_ gave, or its log
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRUST_TRUST_DESK_H_
