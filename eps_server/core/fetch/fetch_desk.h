#ifndef EPS_SERVER_CORE_FETCH_FETCH_DESK_H_
#define EPS_SERVER_CORE_FETCH_FETCH_DESK_H_

// Weights on their way to the workers: answers fetches, parks those whose version does not exist
// yet, and encodes each chunk once per visit, ahead of the first fetch or during the update.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/visits.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/fetch/encoded_copies.h"
#include "eps_server/core/fetch/stage_clock.h"
#include "eps_server/core/fetch/step_workers.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/wait_page.h"

namespace eps {

// For one thread. Borrows facts and outbox, which outlive it.
class FetchDesk {
 public:
  FetchDesk(const ShardFacts* facts, Outbox* outbox);

  void On(const event::Fetch& e);
  void On(const event::FetchDrained& e);
  // Returns false, and does nothing, if the call is not one of this desk.
  bool On(const event::OpDone& e);
  // Learns which workers fetch in the open step.
  void On(const internal_event::PartsBegun& e);
  // Drops the copies of the chunk. Call it before the facts say that the chunk is being updated.
  void On(const internal_event::UpdateStarted& e);
  // Answers fetches that came before the job had its weights.
  void On(const internal_event::BorderOpened& e);
  // Answers fetches of the new version.
  void On(const internal_event::ChunkUpdated& e);

  // The axes that parked fetches of the next version need, or else the start of the next step.
  std::vector<Axis> AxesForUpdate(ChunkId chunk) const;
  bool idle() const { return reads_.empty(); }

  void Closed(StreamId stream);
  // Refuses every open fetch: the job failed, or the term is over.
  void EndWork(const absl::Status& why);
  void Waits(WaitPage* page) const;
  // Appends the mean times of every stage.
  void FillTimes(v1::StatusReply* status) const;
  // Returns how many parked or open fetches all events have looked at.
  uint64_t looked_at() const { return looked_at_; }

 private:
  // Names one request on one stream.
  struct Tag {
    StreamId stream;
    uint64_t tag = 0;
    friend bool operator<(const Tag& a, const Tag& b) {
      return a.stream != b.stream ? a.stream < b.stream : a.tag < b.tag;
    }
  };
  // One chunk, along one axis, of an open fetch.
  struct Wanted {
    Tag tag;
    Version version;
    Visit visit;
    Axis axis;
    uint32_t view = 0;  // FetchSlice.view
    PartId part;        // that the worker computes
    uint64_t generation = 0;
    uint64_t since_ms = 0;
  };
  // A fetch that is not answered completely.
  struct Open {
    uint32_t left = 0;  // chunks, along one axis each, that are not sent yet
    std::set<std::pair<ChunkId, uint64_t>> parked;  // where Chunk::parked has it
  };
  // Identifies what a read encodes, whichever visit it was started for.
  using ReadKey = std::tuple<ChunkId, Version, Axis>;
  // A backend read that encodes a chunk.
  struct Read {
    EncodedCopies::Key copy;
    Version version;
    std::vector<Wanted> fetches;  // empty: encoded ahead of the first fetch
  };
  // Fetches and encodings of one chunk.
  struct Chunk {
    std::map<uint64_t, Wanted> parked;            // the version does not exist yet; oldest first
    std::vector<EncodedCopies::Key> from_update;  // what the update in flight encodes
  };

  absl::Status Check(const event::Fetch& e, std::vector<ChunkId>* wanted) const;
  void SendResiduals(Tag tag, const v1::FetchRequest& request, const std::vector<ChunkId>& wanted);
  void ServeParked(ChunkId chunk);
  void Park(ChunkId chunk, Wanted fetch);
  // Removes and returns a parked fetch; `it` then names the next one.
  Wanted Unpark(ChunkId chunk, std::map<uint64_t, Wanted>::iterator* it);
  // Drops a fetch and what of it is parked; `it` then names the next one.
  void Drop(std::map<Tag, Open>::iterator* it);
  uint32_t InFlight(StreamId stream) const;
  void OnGone(ChunkId id, const Wanted& fetch, Version newest);
  void ServeOrPark(ChunkId chunk, Wanted fetch);
  void Serve(ChunkId chunk, const Wanted& fetch);
  void Answer(ChunkId chunk, const Wanted& fetch, const EncodedCopy& copy);
  Read* ReadInFlight(const EncodedCopies::Key& key, Version version);
  void StartRead(const EncodedCopies::Key& key, Version version, std::vector<Wanted> fetches);
  void EncodeAhead(Visit visit, Version version);
  std::vector<EncodedCopies::Key> CopiesForUpdate(ChunkId chunk) const;
  void Refuse(Tag tag, const absl::Status& status);
  Version ContentOf(ChunkId chunk, Version version) const {
    return ContentVersion(facts_.job.chunks.chunk(chunk), version);
  }
  Chunk& At(ChunkId chunk) { return chunks_[facts_.local[chunk.value()]]; }
  const Chunk& At(ChunkId chunk) const { return chunks_[facts_.local[chunk.value()]]; }

  const ShardFacts& facts_;
  Outbox* const outbox_;
  std::map<Tag, Open> open_;
  std::vector<Chunk> chunks_;        // as ShardFacts::owned
  uint64_t next_parked_ = 0;         // counts parked fetches, so that their order is that of Park
  std::map<OpId, Read> reads_;       // in flight
  std::map<ReadKey, OpId> reading_;  // of reads_
  EncodedCopies copies_;
  StageClock clock_;
  StepWorkers workers_;
  uint64_t looked_at_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_FETCH_FETCH_DESK_H_
