#include "eps_server/core/push/offer_queue.h"

#include <utility>

namespace eps {

ContributionLedger::Place OfferQueue::PlaceOf(const Offer& offer) {
  const v1::ContributionKey& key = offer.header.key();
  return {ChunkId(key.chunk()), StageId(key.use_stage()),
          TreeRange{key.part_first(), key.part_count()}};
}

OfferQueue::PlaceKey OfferQueue::KeyOf(const ContributionLedger::Place& place) {
  return {place.chunk, place.use, place.parts.first, place.parts.count};
}

void OfferQueue::Add(Offer offer, uint64_t bytes, Wait wait) {
  const Number number = next_++;
  by_place_.emplace(KeyOf(PlaceOf(offer)), number);
  by_stream_.emplace(offer.stream, number);
  const Waiting& waiting =
      offers_.emplace(number, Waiting{std::move(offer), bytes, wait}).first->second;
  if (wait == Wait::kRoom) AddRoom(number, waiting);
}

// ---------------------------------------------------------------- what may be released

void OfferQueue::Mark(const ContributionLedger::Place& place) {
  const PlaceKey key = KeyOf(place);
  for (auto it = by_place_.lower_bound({key, 0}); it != by_place_.end() && it->first == key; ++it) {
    ++looked_at_;
    marked_.insert(it->second);
  }
}

void OfferQueue::OnSent(const ContributionLedger::Place& place) { Mark(place); }

void OfferQueue::OnCounted(const ContributionLedger::Place& place) {
  if (offers_.empty()) return;
  // Offers that begin within the range overlap it, for every range is a node of the tree of parts.
  const uint32_t end = place.parts.first + place.parts.count;
  for (auto it = by_place_.lower_bound({{place.chunk, place.use, place.parts.first, 0}, 0});
       it != by_place_.end() && it->first < PlaceKey(place.chunk, place.use, end, 0); ++it) {
    ++looked_at_;
    marked_.insert(it->second);
  }
  // The others that overlap it begin before it: they are nodes above it.
  TreeRange node = place.parts;
  while (const std::optional<TreeRange> parent = TreeParent(parts_, node)) {
    node = *parent;
    if (node.first < place.parts.first) Mark({place.chunk, place.use, node});
  }
}

void OfferQueue::OnOtherStep() {
  for (const auto& [number, waiting] : offers_) marked_.insert(number);
}

// Marks the oldest offer of each size that has room. The others of that size follow it (MarkNext).
void OfferQueue::MarkFitting(PartId part, StageId stage, const Admission& admission,
                             StageId oldest) {
  const auto room = rooms_.find({part, stage});
  if (room == rooms_.end()) return;
  for (const auto& [bytes, numbers] : room->second) {
    ++looked_at_;
    if (!admission.Fits(part, stage, oldest, bytes)) return;  // nor do larger ones
    marked_.insert(*numbers.begin());
  }
}

void OfferQueue::MarkWithRoom(const Admission& admission, StageId oldest) {
  if (oldest_ != oldest) {
    for (auto it = stages_.lower_bound({oldest, PartId(0)});
         it != stages_.end() && it->first == oldest; ++it) {
      MarkFitting(it->second, oldest, admission, oldest);
    }
  }
  oldest_ = oldest;
  for (const PartId part : freed_) {
    for (auto it = rooms_.lower_bound({part, StageId(0)});
         it != rooms_.end() && it->first.first == part; ++it) {
      MarkFitting(part, it->first.second, admission, oldest);
    }
  }
  freed_.clear();
}

// Marks the offer of the same part, stage and size that came next, if it has room.
void OfferQueue::MarkNext(Number number, const Waiting& waiting, const Admission& admission,
                          StageId oldest) {
  const ContributionLedger::Place place = PlaceOf(waiting.offer);
  const PartId part(place.parts.first);
  const std::set<Number>& equal = rooms_.at({part, place.use}).at(waiting.bytes);
  const auto next = equal.upper_bound(number);
  if (next == equal.end() || !admission.Fits(part, place.use, oldest, waiting.bytes)) return;
  marked_.insert(*next);
}

void OfferQueue::Retry(const Admission& admission, StageId oldest, const Attempt& attempt) {
  MarkWithRoom(admission, oldest);
  while (!marked_.empty()) {
    const Number number = *marked_.begin();
    marked_.erase(marked_.begin());
    const auto it = offers_.find(number);
    if (it == offers_.end()) continue;
    ++looked_at_;
    Waiting& waiting = it->second;
    const std::optional<Wait> wait = attempt(waiting.offer);
    if (waiting.wait == Wait::kRoom && wait != Wait::kRoom) {
      MarkNext(number, waiting, admission, oldest);
    }
    if (!wait.has_value()) {
      Erase(it);
    } else if (*wait != waiting.wait) {
      if (waiting.wait == Wait::kRoom) RemoveRoom(number, waiting);
      waiting.wait = *wait;
      if (waiting.wait == Wait::kRoom) AddRoom(number, waiting);
    }
  }
}

// ---------------------------------------------------------------- the indices

void OfferQueue::AddRoom(Number number, const Waiting& waiting) {
  const ContributionLedger::Place place = PlaceOf(waiting.offer);
  const PartId part(place.parts.first);
  rooms_[{part, place.use}][waiting.bytes].insert(number);
  stages_.emplace(place.use, part);
}

void OfferQueue::RemoveRoom(Number number, const Waiting& waiting) {
  const ContributionLedger::Place place = PlaceOf(waiting.offer);
  const PartId part(place.parts.first);
  const auto room = rooms_.find({part, place.use});
  const auto equal = room->second.find(waiting.bytes);
  equal->second.erase(number);
  if (equal->second.empty()) room->second.erase(equal);
  if (!room->second.empty()) return;
  rooms_.erase(room);
  stages_.erase({place.use, part});
}

void OfferQueue::Erase(std::map<Number, Waiting>::iterator it) {
  const auto& [number, waiting] = *it;
  if (waiting.wait == Wait::kRoom) RemoveRoom(number, waiting);
  by_place_.erase({KeyOf(PlaceOf(waiting.offer)), number});
  by_stream_.erase({waiting.offer.stream, number});
  offers_.erase(it);
}

void OfferQueue::Remove(StreamId stream) {
  for (auto it = by_stream_.lower_bound({stream, 0});
       it != by_stream_.end() && it->first == stream;) {
    const Number number = it->second;
    ++it;  // Erase invalidates the one before
    Erase(offers_.find(number));
  }
}

void OfferQueue::Clear() {
  offers_.clear();
  by_place_.clear();
  by_stream_.clear();
  rooms_.clear();
  stages_.clear();
  marked_.clear();
}

void OfferQueue::ForEach(const std::function<void(const Offer&, Wait)>& visit) const {
  for (const auto& [number, waiting] : offers_) visit(waiting.offer, waiting.wait);
}

std::optional<uint64_t> OfferQueue::step() const {
  if (offers_.empty()) return std::nullopt;
  return offers_.begin()->second.offer.header.key().step();
}

}  // namespace eps
