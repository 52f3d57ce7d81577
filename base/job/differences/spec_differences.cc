#include "base/job/differences/spec_differences.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace eps {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kShownCharacters = 80;

std::string Shown(const std::string& value) {
  if (value.size() <= kShownCharacters) return value;
  return absl::StrCat(value.substr(0, kShownCharacters), "...");
}

Values ValuesOf(absl::string_view text) {
  Values values;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> value =
        absl::StrSplit(line, absl::MaxSplits(" = ", 1));
    if (!values.empty() && values.back().first == value.first) {
      absl::StrAppend(&values.back().second, ", ", value.second);
    } else {
      values.push_back(value);
    }
  }
  return values;
}

// Finds values by key.
class Index {
 public:
  explicit Index(const Values& values) {
    for (const auto& [key, value] : values) by_key_.emplace(key, &value);
  }
  // Returns null if there is none.
  const std::string* Find(const std::string& key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second;
  }

 private:
  std::map<absl::string_view, const std::string*> by_key_;
};

// Returns the key without the number at its end, with the dot before it; empty if it has none.
absl::string_view ListOf(absl::string_view key) {
  const size_t end = key.find_last_not_of("0123456789");
  const bool numbered = end != absl::string_view::npos && end + 1 < key.size() && key[end] == '.';
  return numbered ? key.substr(0, end + 1) : absl::string_view();
}

// Keeps the first difference of each list.
std::vector<SpecDifference> WithoutRepetition(std::vector<SpecDifference> all) {
  std::vector<SpecDifference> kept;
  std::map<std::string, std::pair<size_t, size_t>> lists;  // place in `kept`, number of others
  for (SpecDifference& difference : all) {
    const std::string list(ListOf(difference.key));
    const auto found = lists.find(list);
    if (!list.empty() && found != lists.end()) {
      ++found->second.second;
      continue;
    }
    lists.emplace(list, std::make_pair(kept.size(), size_t{0}));
    kept.push_back(std::move(difference));
  }
  for (const auto& [list, place] : lists) {
    if (list.empty() || place.second == 0) continue;
    absl::StrAppend(&kept[place.first].text, " (and ", place.second, " more of ", list, "N)");
  }
  return kept;
}

}  // namespace

std::vector<SpecDifference> AllDifferences(absl::string_view theirs, absl::string_view ours) {
  const Values there = ValuesOf(theirs);
  const Values here = ValuesOf(ours);
  const Index of_there(there), of_here(here);
  std::vector<SpecDifference> differences;
  for (const auto& [key, value] : here) {
    const std::string* const other = of_there.Find(key);
    if (other != nullptr && *other == value) continue;
    differences.push_back({key, absl::StrCat(key, ": ", other == nullptr ? "absent" : Shown(*other),
                                             " there, ", Shown(value), " here")});
  }
  for (const auto& [key, value] : there) {
    if (of_here.Find(key) != nullptr) continue;
    differences.push_back({key, absl::StrCat(key, ": ", Shown(value), " there, absent here")});
  }
  return WithoutRepetition(std::move(differences));
}

}  // namespace eps
