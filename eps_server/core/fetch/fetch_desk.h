#ifndef EPS_SERVER_CORE_FETCH_FETCH_DESK_H_
#define EPS_SERVER_CORE_FETCH_FETCH_DESK_H_

// Weights on their way to the workers: answers fetches, parks those whose version does not exist
// yet, and encodes each chunk once per visit, ahead of the first fetch or during the update.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/fetch/encoded_copies.h"
#include "eps_server/core/fetch/stage_clock.h"
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
    uint64_t since_ms = 0;
  };
  // A backend read that encodes a chunk.
  struct Read {
    EncodedCopies::Key copy;
    Version version;
    std::vector<Wanted> fetches;  // empty: encoded ahead of the first fetch
  };
  // Fetches and encodings of one chunk.
  struct Chunk {
    std::vector<Wanted> parked;                   // the version does not exist yet
    std::vector<EncodedCopies::Key> from_update;  // what the update in flight encodes
  };

  absl::Status Check(const event::Fetch& e, std::vector<ChunkId>* wanted) const;
  void SendResiduals(Tag tag, const v1::FetchRequest& request, const std::vector<ChunkId>& wanted);
  void ServeParked(ChunkId chunk);
  void ServeOrPark(ChunkId chunk, Wanted fetch);
  void Serve(ChunkId chunk, const Wanted& fetch);
  void Answer(ChunkId chunk, const Wanted& fetch, const Bytes& payload);
  Read* ReadInFlight(const EncodedCopies::Key& key, Version version);
  void StartRead(const EncodedCopies::Key& key, Version version, std::vector<Wanted> fetches);
  void EncodeAhead(Visit visit, Version version);
  std::optional<Visit> NextVisit(Visit visit) const;
  std::vector<EncodedCopies::Key> CopiesForUpdate(ChunkId chunk) const;
  size_t WorkersOfStep() const;
  void Refuse(Tag tag, const absl::Status& status);
  Chunk& At(ChunkId chunk) { return chunks_[facts_.local[chunk.value()]]; }
  const Chunk& At(ChunkId chunk) const { return chunks_[facts_.local[chunk.value()]]; }

  const ShardFacts& facts_;
  Outbox* const outbox_;
  std::map<Tag, uint32_t> open_;  // fetches, with the number of chunks that are not sent yet
  std::vector<Chunk> chunks_;     // as ShardFacts::owned
  std::map<OpId, Read> reads_;    // in flight
  EncodedCopies copies_;
  StageClock clock_;
  std::vector<uint64_t> nonces_;  // by part: the worker that began the open step with it; 0: none
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_FETCH_FETCH_DESK_H_
