#ifndef EPS_SERVER_CORE_PUSH_PUSH_DESK_H_
#define EPS_SERVER_CORE_PUSH_PUSH_DESK_H_

// Gradients on their way in: a header is offered and admitted, its payload arrives, the
// contribution is counted exactly once and acknowledged.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
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
  void On(const internal_event::GradientUsed& e);
  void On(const internal_event::MemoryFreed&) { RetryOffers(); }
  // Forgets the step: the next one opens.
  void On(const internal_event::StepComplete&) { ledger_.Reset(); }

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
  void EndWork() { offers_.clear(); }
  // Refuses all offers: the job failed.
  void RefuseOffers(const absl::Status& why);
  void Waits(WaitPage* page) const;

 private:
  enum class Decided { kCredited, kAnswered, kWaits };
  // A header that has no credit yet.
  struct Offer {
    StreamId stream;
    v1::PushHeader header;
    uint64_t since_ms = 0;
  };
  using Tag = std::pair<StreamId, uint64_t>;
  using FlatKey = std::array<uint32_t, 4>;  // use, first part, parts, chunk

  absl::Status Check(const v1::PushHeader& header) const;
  uint64_t HeldBytes(const v1::PushHeader& header) const;
  bool IsNew(const v1::PushHeader& header) const;
  Decided TryOffer(const Offer& offer);
  void RetryOffers();
  void Ack(StreamId stream, uint64_t tag, v1::Ack::Outcome outcome, const std::string& message);
  void RefuseForNow(StreamId stream, uint64_t tag, const std::string& message, bool retry);
  void Release(const v1::PushHeader& incoming);
  void Receive(StreamId stream, uint64_t tag, std::shared_ptr<const EncodedChunk> data_or_null,
               const Bytes& residual);
  void Count(const v1::PushHeader& header, std::shared_ptr<const EncodedChunk> data_or_null,
             const Bytes& residual);
  void RaiseIfComplete(ChunkId chunk);
  std::string NonfiniteText(const v1::ContributionKey& key, uint64_t element,
                            const absl::Status& status) const;
  static FlatKey FlatKeyOf(const v1::ContributionKey& key);

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  ContributionLedger ledger_;  // what counts in the open step
  Admission admission_;
  std::deque<Offer> offers_;                // in the order in which they came
  std::map<Tag, v1::PushHeader> incoming_;  // credited: the payload is in flight
  std::set<FlatKey> incoming_keys_;         // of incoming_
  // By owned chunk: the bytes charged to parts for contributions that wait for their update.
  std::vector<std::vector<std::pair<PartId, uint64_t>>> held_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_PUSH_DESK_H_
