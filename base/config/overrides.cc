#include "base/config/overrides.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace eps {

absl::StatusOr<std::vector<Setting>> ReadOverrides(
    const std::vector<std::string>& arguments,
    const std::function<absl::Status(const std::string& name)>& check) {
  std::vector<Setting> settings;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const absl::Status status = check(name);
    if (!status.ok()) return status;
    const std::string key(absl::StripPrefix(name, "--"));
    if (equals != std::string::npos) {
      settings.emplace_back(key, argument.substr(equals + 1));
    } else if (i + 1 < arguments.size() && !absl::StartsWith(arguments[i + 1], "--")) {
      settings.emplace_back(key, arguments[++i]);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, ": a value is missing"));
    }
  }
  return settings;
}

std::string ListText(const std::vector<std::string>& items) {
  const auto quote = [](std::string* out, const std::string& item) {
    out->push_back('"');
    for (const char c : item) {
      if (c == '"' || c == '\\') out->push_back('\\');
      out->push_back(c);
    }
    out->push_back('"');
  };
  return absl::StrCat("[", absl::StrJoin(items, ", ", quote), "]");
}

}  // namespace eps
