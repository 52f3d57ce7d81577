#include "base/job/spec_differences.h"

#include <algorithm>
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

// Returns the value of a key, or null.
const std::string* Find(const Values& values, const std::string& key) {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& value) { return value.first == key; });
  return found == values.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<SpecDifference> AllDifferences(absl::string_view theirs, absl::string_view ours) {
  const Values there = ValuesOf(theirs);
  const Values here = ValuesOf(ours);
  std::vector<SpecDifference> differences;
  for (const auto& [key, value] : here) {
    const std::string* const other = Find(there, key);
    if (other != nullptr && *other == value) continue;
    differences.push_back({key, absl::StrCat(key, ": ", other == nullptr ? "absent" : Shown(*other),
                                             " there, ", Shown(value), " here")});
  }
  for (const auto& [key, value] : there) {
    if (Find(here, key) != nullptr) continue;
    differences.push_back({key, absl::StrCat(key, ": ", Shown(value), " there, absent here")});
  }
  return differences;
}

}  // namespace eps
