#include "base/job/key_rules.h"

namespace eps {
namespace {

constexpr size_t kMaxNameLength = 256;

bool IsAsciiLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

absl::Status CheckRule(absl::string_view key, double value, const Reals& range) {
  if (range.ends == Reals::Ends::kAboveLow && value == range.low) {
    return Refuse(key, "expected a number above ", range.low, ", found ", value);
  }
  if (range.ends == Reals::Ends::kBelowHigh && value == range.high) {
    return Refuse(key, "expected a number from ", range.low, " to below ", range.high, ", found ",
                  value);
  }
  if (value >= range.low && value <= range.high && !std::signbit(value) &&
      (value == 0.0 || std::isnormal(value))) {
    return absl::OkStatus();
  }
  return Refuse(key, "expected a number from ", range.low, " to ", range.high, ", found ", value);
}

absl::Status CheckSigned(absl::string_view key, double value, double low, double high) {
  const bool usual = value == 0.0 ? !std::signbit(value) : std::isnormal(value);
  if (usual && value >= low && value <= high) return absl::OkStatus();
  return Refuse(key, "expected a number from ", low, " to ", high, ", found ", value);
}

absl::Status CheckCharacters(absl::string_view key, absl::string_view name,
                             absl::string_view others) {
  if (name.size() > kMaxNameLength) {
    return Refuse(key, "expected at most ", kMaxNameLength, " characters, found ", name.size());
  }
  for (size_t i = 0; i < name.size(); ++i) {
    if (!IsAsciiLetterOrDigit(name[i]) && others.find(name[i]) == absl::string_view::npos) {
      return Refuse(key, "expected letters, digits and ", others, ", found byte ",
                    static_cast<unsigned char>(name[i]), " at position ", i);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckName(absl::string_view key, absl::string_view name, absl::string_view others) {
  if (name.empty()) return Refuse(key, "expected a name, found an empty one");
  return CheckCharacters(key, name, others);
}

}  // namespace eps
