#ifndef EPS_SERVER_CORE_PUSH_PUSH_DESK_H_
#define EPS_SERVER_CORE_PUSH_PUSH_DESK_H_

// Gradients on their way in: a header is offered and admitted, its payload arrives, the
// contribution is counted exactly once and acknowledged.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "compression/codec.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/log.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/push/admission.h"
#include "eps_server/core/push/contribution_ledger.h"
#include "eps_server/core/push/credit_book.h"
#include "eps_server/core/push/offer_queue.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/wait_page.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which outlive it.
class PushDesk {
 public:
  PushDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox);

  void On(const event::PushOffered& e);
  void On(const event::PushReceived& e);
  void On(const event::PushInvalid& e);
  // Takes back the credits that were not used in time (rule L12 of docs/protocol.md).
  void On(const event::Timer& e);
  void On(const internal_event::GradientUsed& e);
  void On(const internal_event::MemoryFreed&) { RetryOffers(); }
  // Forgets the step: the next one opens.
  void On(const internal_event::StepComplete&);

  // Counts a contribution that an earlier process logged. Returns false if updates in flight have
  // to make room first. DataLoss if the entry does not fit the state.
  absl::StatusOr<bool> Replay(const v1::LoggedPush& push, const Bytes& payload,
                              const Bytes& residual);

  // Whether every contribution to the chunk is counted.
  bool Complete(ChunkId chunk) const { return ledger_.Complete(chunk); }
  // Names the first missing contribution. REQUIRES !Complete(chunk).
  std::string FirstMissing(ChunkId chunk) const;
  std::vector<v1::Have> Counted(const std::vector<bool>& parts) const;

  // Drops what the stream offered and what it was sending. Offers of others may take the room.
  void Closed(StreamId stream);
  // Drops all offers: the job failed, or the term is over.
  void EndWork() { offers_.Clear(); }
  // Ends all streams of the term, which is over.
  void EndTerm(const absl::Status& why);
  // Refuses all offers: the job failed.
  void RefuseOffers(const absl::Status& why);
  void Waits(WaitPage* page) const;
  // As OfferQueue::looked_at.
  uint64_t looked_at() const { return offers_.looked_at(); }

 private:
  using Offer = OfferQueue::Offer;

  absl::Status Check(const v1::PushHeader& header) const;
  absl::Status CheckGenerations(const v1::PushHeader& header) const;
  uint64_t HeldBytes(const v1::PushHeader& header) const;
  bool IsNew(const v1::PushHeader& header) const;
  std::optional<OfferQueue::Wait> TryOffer(const Offer& offer);
  void RetryOffers();
  void AnswerLate(StreamId stream, const v1::PushHeader& header);
  void WatchCredits();
  void TakeBack(StreamId stream, uint64_t tag);
  std::optional<v1::PushHeader> EndCredit(StreamId stream, uint64_t tag);
  void Ack(StreamId stream, uint64_t tag, v1::Ack::Outcome outcome, const std::string& message,
           uint32_t retry_after_ms = 0);
  void RefuseForNow(StreamId stream, uint64_t tag, const std::string& message, bool retry);
  void Release(const v1::PushHeader& header);
  void Receive(StreamId stream, uint64_t tag, std::shared_ptr<const EncodedChunk> data_or_null,
               const Bytes& residual);
  void Count(const v1::PushHeader& header, std::shared_ptr<const EncodedChunk> data_or_null,
             const Bytes& residual);
  void RaiseIfComplete(ChunkId chunk);

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  ContributionLedger ledger_;  // what counts in the open step
  Admission admission_;
  OfferQueue offers_;
  std::set<StreamId> streams_;  // on which contributions were offered
  CreditBook credits_;
  DamageCounts damage_;           // of the open step
  std::optional<TimerId> timer_;  // runs while there may be credits
  // By owned chunk: the bytes charged to parts for contributions that wait for their update.
  std::vector<std::vector<std::pair<PartId, uint64_t>>> held_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_PUSH_DESK_H_
