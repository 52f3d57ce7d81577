#include "eps_server/core/push/contribution_ledger.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace eps {
namespace {

bool Overlaps(TreeRange a, TreeRange b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

bool Contains(TreeRange outer, TreeRange inner) {
  return outer.first <= inner.first && inner.first + inner.count <= outer.first + outer.count;
}

}  // namespace

ContributionLedger::ContributionLedger(const JobSpec& spec, const ChunkMap& chunks,
                                       const std::vector<ChunkId>& owned)
    : chunks_(chunks),
      parts_(spec.training.parts),
      local_(chunks.chunks().size(), -1),
      stage_missing_(spec.stages.size(), 0) {
  for (ChunkId id : owned) {
    local_[id.value()] = static_cast<int32_t>(entries_.size());
    ChunkEntries entry;
    entry.chunk = id;
    entry.uses.resize(chunks.chunk(id).uses.size());
    entries_.push_back(std::move(entry));
  }
  Reset();
}

void ContributionLedger::Reset() {
  std::fill(stage_missing_.begin(), stage_missing_.end(), 0);
  for (ChunkEntries& entry : entries_) {
    for (UseState& use : entry.uses) {
      use.entries.clear();
      use.counted_parts = 0;
    }
    entry.missing = 0;
    entry.nonfinite = false;
    if (chunks_.chunk(entry.chunk).frozen) continue;
    entry.missing = parts_ * static_cast<uint32_t>(entry.uses.size());
    for (StageId stage : chunks_.chunk(entry.chunk).uses) stage_missing_[stage.value()] += parts_;
  }
}

uint32_t ContributionLedger::UseIndex(ChunkId chunk, StageId use) const {
  const std::vector<StageId>& uses = chunks_.chunk(chunk).uses;
  return static_cast<uint32_t>(std::find(uses.begin(), uses.end(), use) - uses.begin());
}

bool ContributionLedger::IsValid(const Place& place) const {
  return place.chunk.value() < local_.size() && local_[place.chunk.value()] >= 0 &&
         !chunks_.chunk(place.chunk).frozen &&
         UseIndex(place.chunk, place.use) < chunks_.chunk(place.chunk).uses.size() &&
         IsTreeNode(parts_, place.parts);
}

const ContributionLedger::UseState* ContributionLedger::Find(ChunkId chunk, StageId use) const {
  return &entries_[local_[chunk.value()]].uses[UseIndex(chunk, use)];
}

ContributionLedger::Verdict ContributionLedger::Check(const Place& place,
                                                      const Origin& origin) const {
  const std::map<uint32_t, Entry>& entries = Find(place.chunk, place.use)->entries;
  // Entries do not overlap, so those that overlap the place follow the last one that begins there
  // or before.
  auto it = entries.upper_bound(place.parts.first);
  if (it != entries.begin()) --it;
  uint32_t covered = 0;
  for (; it != entries.end() && it->first < place.parts.first + place.parts.count; ++it) {
    const Entry& entry = it->second;
    if (entry.parts == place.parts) {
      const bool same_process = entry.origin.nonce == origin.nonce;
      return same_process && entry.origin.digest != origin.digest ? Verdict::kConflict
                                                                  : Verdict::kDuplicate;
    }
    if (Contains(entry.parts, place.parts)) return Verdict::kDuplicate;
    if (Overlaps(entry.parts, place.parts)) covered += entry.parts.count;
  }
  if (covered == 0) return Verdict::kNew;
  return covered == place.parts.count ? Verdict::kDuplicate : Verdict::kOverlap;
}

void ContributionLedger::Count(const Place& place, const Origin& origin, uint64_t tokens,
                               std::shared_ptr<const EncodedChunk> data) {
  ChunkEntries& chunk = entries_[local_[place.chunk.value()]];
  UseState& use = chunk.uses[UseIndex(place.chunk, place.use)];
  if (data == nullptr) chunk.nonfinite = true;
  use.entries.emplace(place.parts.first, Entry{place.parts, origin, tokens, std::move(data)});
  use.counted_parts += place.parts.count;
  EPS_CHECK_MSG(use.counted_parts <= parts_ && chunk.missing >= place.parts.count,
                "chunk " << place.chunk << " counted twice");
  chunk.missing -= place.parts.count;
  stage_missing_[place.use.value()] -= place.parts.count;
}

bool ContributionLedger::Complete(ChunkId chunk) const {
  return entries_[local_[chunk.value()]].missing == 0;
}

bool ContributionLedger::Nonfinite(ChunkId chunk) const {
  return entries_[local_[chunk.value()]].nonfinite;
}

void ContributionLedger::Drop(ChunkId chunk) {
  for (UseState& use : entries_[local_[chunk.value()]].uses) {
    for (auto& [first, entry] : use.entries) entry.data = nullptr;
  }
}

std::vector<UpdateInput> ContributionLedger::Take(ChunkId chunk) {
  EPS_CHECK(Complete(chunk));
  std::vector<UpdateInput> inputs;
  ChunkEntries& state = entries_[local_[chunk.value()]];
  for (uint32_t use = 0; use < state.uses.size(); ++use) {
    for (auto& [first, entry] : state.uses[use].entries) {
      EPS_CHECK_MSG(entry.data != nullptr, "chunk " << chunk << " taken twice");
      inputs.push_back(UpdateInput{use, entry.parts, std::move(entry.data)});
    }
  }
  return inputs;
}

std::optional<uint64_t> ContributionLedger::Tokens(ChunkId chunk) const {
  std::optional<uint64_t> tokens;
  for (const UseState& use : entries_[local_[chunk.value()]].uses) {
    uint64_t sum = 0;
    for (const auto& [first, entry] : use.entries) sum += entry.tokens;
    if (tokens.has_value() && *tokens != sum) return std::nullopt;
    tokens = sum;
  }
  return tokens;
}

StageId ContributionLedger::OldestIncompleteStage() const {
  for (size_t s = stage_missing_.size(); s-- > 0;) {
    if (stage_missing_[s] > 0) return StageId(static_cast<uint32_t>(s));
  }
  return StageId(0);
}

ContributionLedger::Place ContributionLedger::FirstMissing(ChunkId chunk) const {
  const ChunkEntries& state = entries_[local_[chunk.value()]];
  const std::vector<StageId>& uses = chunks_.chunk(chunk).uses;
  // Backward passes run from the top stage down, so the last use is pushed first.
  for (size_t u = uses.size(); u-- > 0;) {
    if (state.uses[u].counted_parts == parts_) continue;
    uint32_t part = 0;
    for (const auto& [first, entry] : state.uses[u].entries) {
      if (first != part) break;
      part += entry.parts.count;
    }
    return Place{chunk, uses[u], TreeRange{part, 1}};
  }
  EPS_CHECK_MSG(false, "chunk " << chunk << " misses nothing");
  return Place{};
}

std::vector<ContributionLedger::Place> ContributionLedger::Counted(
    const std::vector<bool>& parts) const {
  std::vector<Place> counted;
  for (const ChunkEntries& state : entries_) {
    const std::vector<StageId>& uses = chunks_.chunk(state.chunk).uses;
    for (size_t u = 0; u < uses.size(); ++u) {
      for (const auto& [first, entry] : state.uses[u].entries) {
        bool wanted = false;
        for (uint32_t p = 0; p < entry.parts.count; ++p) wanted |= parts[entry.parts.first + p];
        if (wanted) counted.push_back(Place{state.chunk, uses[u], entry.parts});
      }
    }
  }
  return counted;
}

}  // namespace eps
