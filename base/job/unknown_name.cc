#include "base/job/unknown_name.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"

namespace eps {

std::string UnknownNameText(absl::string_view value, const std::vector<std::string>& names) {
  // Values come from outside and may be long; a status text must stay short.
  constexpr size_t kShown = 64;
  const std::string nearest = value.size() <= kShown ? NearestName(value, names) : std::string();
  return absl::StrCat("'", value.substr(0, kShown), value.size() > kShown ? "..." : "",
                      "' is unknown",
                      nearest.empty() ? "" : absl::StrCat(", did you mean '", nearest, "'?"),
                      "; choose one of ", absl::StrJoin(names, ", "));
}

absl::Status UnknownName(absl::string_view key, absl::string_view value,
                         const std::vector<std::string>& names) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", UnknownNameText(value, names)));
}

}  // namespace eps
