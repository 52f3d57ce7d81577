#include "base/machine/range_map.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace eps {
namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

uint64_t RangeMap::SizeOf(uint64_t bytes) {
  return std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
}

absl::optional<uint64_t> RangeMap::Take(uint64_t bytes) {
  if (bytes > UINT64_MAX - kPage) return absl::nullopt;
  const uint64_t size = SizeOf(bytes);
  for (auto it = gaps_.begin(); it != gaps_.end(); ++it) {
    const auto [begin, gap] = *it;
    if (gap < size) continue;
    gaps_.erase(it);
    if (gap > size) gaps_[begin + size] = gap - size;
    taken_[begin] = size;
    return begin;
  }
  return absl::nullopt;
}

void RangeMap::Return(uint64_t begin) {
  const auto taken = taken_.find(begin);
  EPS_CHECK_MSG(taken != taken_.end(), "no range begins at " << begin);
  uint64_t size = taken->second;
  taken_.erase(taken);
  const auto next = gaps_.lower_bound(begin);
  if (next != gaps_.end() && next->first == begin + size) {
    size += next->second;
    gaps_.erase(next);
  }
  const auto after = gaps_.lower_bound(begin);
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += size;
      return;
    }
  }
  gaps_[begin] = size;
}

}  // namespace eps
