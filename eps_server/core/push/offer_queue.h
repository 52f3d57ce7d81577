#ifndef EPS_SERVER_CORE_PUSH_OFFER_QUEUE_H_
#define EPS_SERVER_CORE_PUSH_OFFER_QUEUE_H_

// Offered contributions that have no credit yet. After an event, only the offers that it may
// release are tried again, in the order in which they came: the work does not grow with the number
// of parts.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/ids.h"
#include "base/numerics/reduction_tree.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/push/admission.h"
#include "eps_server/core/push/contribution_ledger.h"

namespace eps {

// Thread-compatible. All offers are for the open step.
class OfferQueue {
 public:
  // A header that waits for its credit.
  struct Offer {
    StreamId stream;
    v1::PushHeader header;
    uint64_t since_ms = 0;
  };
  enum class Wait {
    kSender,  // another stream has the credit for the same contribution
    kRoom,    // the quota of its part
  };
  // Returns what the offer waits for; nullopt if it got its credit or an answer.
  using Attempt = std::function<std::optional<Wait>(const Offer&)>;

  // `parts` is the number of parts of the job.
  explicit OfferQueue(uint32_t parts) : parts_(parts) {}

  // Appends an offer of `bytes` that waits.
  void Add(Offer offer, uint64_t bytes, Wait wait);

  // These mark what the next Retry looks at. The contribution at the place is no longer being sent:
  void OnSent(const ContributionLedger::Place& place);
  // It was counted, so offers that overlap it have an answer.
  void OnCounted(const ContributionLedger::Place& place);
  // The part holds fewer bytes than before.
  void OnFreed(PartId part) { freed_.insert(part); }
  // The open step, or the state of the job, has changed.
  void OnOtherStep();

  // Tries the marked offers again, in the order of Add. A higher quota is noticed by `oldest`, the
  // oldest incomplete stage. `attempt` may charge bytes to `admission`, and must not mark.
  void Retry(const Admission& admission, StageId oldest, const Attempt& attempt);

  // Removes the offers of a stream.
  void Remove(StreamId stream);
  void Clear();

  // Calls `visit` with each offer, in the order of Add, and with what it waits for.
  void ForEach(const std::function<void(const Offer&, Wait)>& visit) const;
  // Returns the step of the offers; nullopt if there are none.
  std::optional<uint64_t> step() const;
  // Returns how many offers, and groups of offers of equal size, all calls of Retry and OnCounted
  // have looked at.
  uint64_t looked_at() const { return looked_at_; }

 private:
  using Number = uint64_t;  // counts offers, so that its order is that of Add
  // An offer, and where the indices below have it.
  struct Waiting {
    Offer offer;
    uint64_t bytes = 0;
    Wait wait = Wait::kRoom;
  };
  // Chunk, use, first part and number of parts.
  using PlaceKey = std::tuple<ChunkId, StageId, uint32_t, uint32_t>;
  // The offers of a part and stage that wait for room, by their size.
  using Room = std::map<uint64_t, std::set<Number>>;

  static ContributionLedger::Place PlaceOf(const Offer& offer);
  static PlaceKey KeyOf(const ContributionLedger::Place& place);
  void Mark(const ContributionLedger::Place& place);
  void MarkWithRoom(const Admission& admission, StageId oldest);
  void MarkFitting(PartId part, StageId stage, const Admission& admission, StageId oldest);
  void MarkNext(Number number, const Waiting& waiting, const Admission& admission, StageId oldest);
  void AddRoom(Number number, const Waiting& waiting);
  void RemoveRoom(Number number, const Waiting& waiting);
  void Erase(std::map<Number, Waiting>::iterator it);

  const uint32_t parts_;
  Number next_ = 0;
  std::map<Number, Waiting> offers_;
  std::set<std::pair<PlaceKey, Number>> by_place_;
  std::set<std::pair<StreamId, Number>> by_stream_;
  std::map<std::pair<PartId, StageId>, Room> rooms_;  // never empty
  std::set<std::pair<StageId, PartId>> stages_;       // the keys of rooms_
  std::set<Number> marked_;
  std::set<PartId> freed_;
  std::optional<StageId> oldest_;  // in the last Retry
  uint64_t looked_at_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_OFFER_QUEUE_H_
