#include "base/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace eps {
namespace {

// The optimal string alignment distance: the number of insertions, deletions, substitutions and
// swaps of neighbors. Computed row by row.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before_last;
  std::vector<size_t> last(b.size() + 1);
  for (size_t j = 0; j < last.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(last.size());
    row[0] = i;
    for (size_t j = 1; j < row.size(); ++j) {
      const size_t substituted = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substituted});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last.back();
}

}  // namespace

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    // More than a third of the letters wrong is another word, not a slip.
    const bool is_close = distance * 3 <= std::max(name.size(), candidate.size());
    if (is_close && distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace eps
