#include "eps_server/core/push/credit_book.h"

#include <algorithm>

#include "base/check.h"

namespace eps {

ContributionName NameOf(const v1::ContributionKey& key) {
  return {key.use_stage(), key.part_first(), key.part_count(), key.chunk()};
}

void CreditBook::Give(const Tag& tag, const v1::PushHeader& header, uint64_t now_ms) {
  const uint64_t serial = next_serial_++;
  const bool is_free = credits_.emplace(tag, Credit{header, serial}).second &&
                       names_.insert(NameOf(header.key())).second;
  EPS_CHECK_MSG(is_free, "stream " << tag.first << ", tag " << tag.second << ": a second credit");
  by_age_.emplace(serial, std::make_pair(now_ms, tag));
}

const v1::PushHeader* CreditBook::FindOrNull(const Tag& tag) const {
  const auto it = credits_.find(tag);
  return it == credits_.end() ? nullptr : &it->second.header;
}

std::optional<v1::PushHeader> CreditBook::Take(const Tag& tag) {
  const auto it = credits_.find(tag);
  if (it == credits_.end()) return std::nullopt;
  v1::PushHeader header = std::move(it->second.header);
  names_.erase(NameOf(header.key()));
  by_age_.erase(it->second.serial);
  credits_.erase(it);
  return header;
}

std::vector<CreditBook::Tag> CreditBook::OfStream(StreamId stream) const {
  std::vector<Tag> tags;
  for (auto it = credits_.lower_bound({stream, 0});
       it != credits_.end() && it->first.first == stream; ++it) {
    tags.push_back(it->first);
  }
  return tags;
}

std::vector<CreditBook::Tag> CreditBook::GivenUntil(uint64_t ms) const {
  std::vector<Tag> tags;
  for (const auto& [serial, given] : by_age_) {
    if (given.first > ms) break;
    tags.push_back(given.second);
  }
  return tags;
}

std::optional<uint64_t> CreditBook::oldest_ms() const {
  if (by_age_.empty()) return std::nullopt;
  return by_age_.begin()->second.first;
}

void DamageCounts::Note(const v1::PushHeader& header) {
  std::vector<Count>& counts = counts_[NameOf(header.key())];
  const auto it = std::find_if(counts.begin(), counts.end(), [&](const Count& count) {
    return count.nonce == header.worker_nonce();
  });
  Count count{header.worker_nonce(), 0};
  if (it != counts.end()) {
    count = *it;
    counts.erase(it);
  } else if (counts.size() == kMostProcesses) {
    counts.erase(counts.begin());
  }
  ++count.damaged;
  counts.push_back(count);
}

bool DamageCounts::IsFinal(const v1::PushHeader& header) const {
  const auto found = counts_.find(NameOf(header.key()));
  if (found == counts_.end()) return false;
  for (const Count& count : found->second) {
    if (count.nonce == header.worker_nonce()) return count.damaged >= kFinal;
  }
  return false;
}

}  // namespace eps
