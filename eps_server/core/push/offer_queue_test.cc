// OfferQueue against a list that is scanned from its begin after every event, and what it looks at.

#include "eps_server/core/push/offer_queue.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "eps_server/core/push/admission.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Wait = OfferQueue::Wait;

constexpr uint64_t kAhead = 100;
constexpr uint64_t kTotal = 300;

Admission::Quota SmallQuota() {
  Admission::Quota quota;
  quota.ahead_bytes = kAhead;
  quota.total_bytes = kTotal;
  return quota;
}

OfferQueue::Offer OfferOf(uint64_t stream, uint64_t tag, ChunkId chunk, StageId use,
                          TreeRange parts, uint64_t bytes) {
  OfferQueue::Offer offer;
  offer.stream = StreamId(stream);
  offer.header.set_tag(tag);
  offer.header.set_bytes(bytes);
  v1::ContributionKey* const key = offer.header.mutable_key();
  key->set_step(1);
  key->set_chunk(chunk.value());
  key->set_use_stage(use.value());
  key->set_part_first(parts.first);
  key->set_part_count(parts.count);
  return offer;
}

ContributionLedger::Place PlaceOf(const OfferQueue::Offer& offer) {
  const v1::ContributionKey& key = offer.header.key();
  return {ChunkId(key.chunk()), StageId(key.use_stage()),
          TreeRange{key.part_first(), key.part_count()}};
}

// The facts on which a desk decides: room, credits, and what is counted.
class World {
 public:
  // With `scans`, every offer that waits is tried again after each event.
  World(uint32_t parts, bool scans)
      : scans_(scans), admission_(SmallQuota(), parts), queue_(parts) {}

  std::optional<Wait> Attempt(const OfferQueue::Offer& offer) {
    const ContributionLedger::Place place = PlaceOf(offer);
    for (const TreeRange counted : counted_[{place.chunk, place.use}]) {
      const bool apart = counted.first + counted.count <= place.parts.first ||
                         place.parts.first + place.parts.count <= counted.first;
      if (apart) continue;
      Note("answer", offer);
      return std::nullopt;
    }
    if (sent_places_.count({place.chunk, place.use, place.parts}) > 0) return Wait::kSender;
    if (!admission_.Admit(PartId(place.parts.first), place.use, oldest_, /*tied=*/false,
                          offer.header.bytes())) {
      return Wait::kRoom;
    }
    sent_.push_back(offer);
    sent_places_.insert({place.chunk, place.use, place.parts});
    Note("credit", offer);
    return std::nullopt;
  }

  // As PushDesk: an offer arrives; a payload is counted; one is lost; a stream ends; a stage is
  // complete.
  void Arrive(const OfferQueue::Offer& offer) {
    const std::optional<Wait> wait = Attempt(offer);
    if (!wait.has_value()) return;
    if (scans_) {
      list_.push_back(offer);
    } else {
      queue_.Add(offer, offer.header.bytes(), *wait);
    }
  }
  void Count(size_t i) {
    const OfferQueue::Offer offer = TakeSent(i);
    const ContributionLedger::Place place = PlaceOf(offer);
    counted_[{place.chunk, place.use}].push_back(place.parts);
    held_.emplace_back(PartId(offer.header.key().part_first()), offer.header.bytes());
    queue_.OnCounted(place);
  }
  void Lose(size_t i) {
    const OfferQueue::Offer offer = TakeSent(i);
    Release(PartId(offer.header.key().part_first()), offer.header.bytes());
  }
  void Use(size_t i) {
    Release(held_[i].first, held_[i].second);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
  }
  void Close(StreamId stream) {
    queue_.Remove(stream);
    list_.erase(std::remove_if(list_.begin(), list_.end(),
                               [&](const OfferQueue::Offer& o) { return o.stream == stream; }),
                list_.end());
  }
  void SetOldest(StageId stage) { oldest_ = stage; }
  void Retry() {
    const auto attempt = [this](const OfferQueue::Offer& offer) { return Attempt(offer); };
    if (!scans_) return queue_.Retry(admission_, oldest_, attempt);
    std::deque<OfferQueue::Offer> before;
    before.swap(list_);
    for (const OfferQueue::Offer& offer : before) {
      if (Attempt(offer).has_value()) list_.push_back(offer);
    }
  }

  size_t sent() const { return sent_.size(); }
  size_t held() const { return held_.size(); }
  const std::vector<std::string>& notes() const { return notes_; }
  OfferQueue& queue() { return queue_; }

 private:
  OfferQueue::Offer TakeSent(size_t i) {
    std::swap(sent_[i], sent_.back());
    const OfferQueue::Offer offer = sent_.back();
    sent_.pop_back();
    const ContributionLedger::Place place = PlaceOf(offer);
    sent_places_.erase({place.chunk, place.use, place.parts});
    queue_.OnSent(place);
    return offer;
  }
  void Release(PartId part, uint64_t bytes) {
    admission_.Release(part, /*tied=*/false, bytes);
    queue_.OnFreed(part);
  }
  void Note(const char* what, const OfferQueue::Offer& offer) {
    notes_.push_back(what + std::string(" ") + std::to_string(offer.header.tag()));
  }

  const bool scans_;
  Admission admission_;
  OfferQueue queue_;
  std::deque<OfferQueue::Offer> list_;  // in place of queue_
  std::vector<OfferQueue::Offer> sent_;
  std::set<std::tuple<ChunkId, StageId, TreeRange>> sent_places_;
  std::map<std::pair<ChunkId, StageId>, std::vector<TreeRange>> counted_;
  std::vector<std::pair<PartId, uint64_t>> held_;
  StageId oldest_{3};
  std::vector<std::string> notes_;
};

// The same events for both worlds, drawn from a seed.
std::vector<std::string> EventsOf(uint64_t seed, bool scans) {
  constexpr uint32_t kParts = 6;
  constexpr TreeRange kRanges[] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1},
                                   {5, 1}, {0, 2}, {2, 2}, {0, 4}, {4, 2}};
  World world(kParts, scans);
  uint64_t state = seed;
  const auto draw = [&](uint64_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
  };
  uint32_t oldest = 3;
  for (uint64_t tag = 1; tag <= 300; ++tag) {
    const uint64_t what = draw(10);
    const uint64_t pick = draw(1000);
    if (what < 5) {
      const uint64_t stream = 1 + draw(4);
      const ChunkId chunk(static_cast<uint32_t>(draw(12)));
      const StageId use(chunk.value() % 4);
      const TreeRange parts = kRanges[draw(10)];
      world.Arrive(OfferOf(stream, tag, chunk, use, parts, 20 * (1 + draw(4))));
    } else if (what < 7 && world.sent() > 0) {
      world.Count(pick % world.sent());
    } else if (what == 7 && world.sent() > 0) {
      world.Lose(pick % world.sent());
    } else if (what == 8 && world.held() > 0) {
      for (uint64_t i = 0; i <= pick % 3 && world.held() > 0; ++i) world.Use(0);
    } else if (what == 9) {
      if (pick % 4 == 0 && oldest > 0) world.SetOldest(StageId(--oldest));
      if (pick % 7 == 0) world.Close(StreamId(1 + pick % 4));
    }
    world.Retry();
  }
  return world.notes();
}

TEST(OfferQueue, ReleasesWhatAScanReleases) {
  size_t events = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const std::vector<std::string> queued = EventsOf(seed, /*scans=*/false);
    ASSERT_EQ(queued, EventsOf(seed, /*scans=*/true)) << "seed " << seed;
    events += queued.size();
  }
  EXPECT_GT(events, 10'000u) << "the runs credit and answer too little";
}

// Returns the most elements that an event looks at when every part has full quotas.
uint64_t MostLookedAt(uint32_t parts) {
  World world(parts, /*scans=*/false);
  constexpr uint32_t kChunks = 4;  // two of them fit the quota ahead
  for (uint32_t part = 0; part < parts; ++part) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      world.Arrive(
          OfferOf(part, chunk, ChunkId(chunk), StageId(1), TreeRange{part, 1}, kAhead / 2));
    }
  }
  world.Retry();
  uint64_t most = 0;
  uint64_t before = world.queue().looked_at();
  for (uint32_t part = 0; part < parts; ++part) {
    if (part % 3 == 0) world.Lose(0);
    if (part % 3 == 1) world.Count(0);
    if (part % 3 == 2) world.Close(StreamId(parts - part));
    world.Retry();
    most = std::max(most, world.queue().looked_at() - before);
    before = world.queue().looked_at();
  }
  return most;
}

TEST(OfferQueue, LooksAtFewOffersPerEvent) {
  const uint64_t few = MostLookedAt(16);
  EXPECT_GT(few, 0u);
  EXPECT_LE(few, 8u);
  EXPECT_LE(MostLookedAt(4096), few + 12) << "12 is the height of the tree of parts";
}

}  // namespace
}  // namespace eps
