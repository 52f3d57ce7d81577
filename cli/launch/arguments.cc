#include "cli/launch/arguments.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"

namespace eps {

OptionReader& OptionReader::Flag(std::string name, bool* given) {
  flags_.emplace_back(std::move(name), given);
  return *this;
}

OptionReader& OptionReader::Text(std::string name, std::string* value) {
  return Value(std::move(name), [value](absl::string_view text) {
    *value = std::string(text);
    return absl::OkStatus();
  });
}

OptionReader& OptionReader::Value(std::string name, Set set) {
  values_.emplace_back(std::move(name), std::move(set));
  return *this;
}

absl::StatusOr<std::vector<std::string>> OptionReader::Read(
    const std::vector<std::string>& arguments) const {
  std::vector<std::string> others;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto flag = std::find_if(flags_.begin(), flags_.end(),
                                   [&](const auto& entry) { return entry.first == argument; });
    if (flag != flags_.end()) {
      *flag->second = true;
      continue;
    }
    const auto value = std::find_if(values_.begin(), values_.end(), [&](const auto& entry) {
      return argument == entry.first || absl::StartsWith(argument, entry.first + "=");
    });
    if (value == values_.end()) {
      others.push_back(argument);
      continue;
    }
    const bool apart = argument == value->first;
    if (apart && (i + 1 == arguments.size() || absl::StartsWith(arguments[i + 1], "--"))) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument, ": expected a value, found none; write ", argument, "=VALUE"));
    }
    const absl::string_view text =
        apart ? arguments[++i] : absl::string_view(argument).substr(value->first.size() + 1);
    const absl::Status status = value->second(text);
    if (!status.ok()) return status;
  }
  return others;
}

absl::Status UnknownCommand(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(word, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command or option ", word, ", known are ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

}  // namespace eps
