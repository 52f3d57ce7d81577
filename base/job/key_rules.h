#ifndef EPS_BASE_JOB_KEY_RULES_H_
#define EPS_BASE_JOB_KEY_RULES_H_

// The values that a key accepts beyond the type of its value: the third argument of a visitor's
// Key() (base/job/keys.h). All functions are pure. Refusals are InvalidArgument, name the key and
// say what was expected and what was found.

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps {

// Every value of the type, or a check that needs other keys as well.
struct AnyValue {};

// Whole numbers from `low` to `high`, both included.
struct Range {
  constexpr Range(uint64_t low_value, uint64_t high_value) : low(low_value), high(high_value) {}
  uint64_t low;
  uint64_t high;
};

// Real numbers from `low` to `high`. Always refused: denormal numbers, because some threads read
// them as zero, and -0, because it equals 0 but is written otherwise.
struct Reals {
  enum class Ends { kBoth, kAboveLow, kBelowHigh };  // which ends belong to the range
  constexpr Reals(double low_value, double high_value, Ends which = Ends::kBoth)
      : low(low_value), high(high_value), ends(which) {}
  double low;
  double high;
  Ends ends;
};
inline constexpr Reals kPositive(0.0, 1e30, Reals::Ends::kAboveLow);
inline constexpr Reals kBelowOne(0.0, 1.0, Reals::Ends::kBelowHigh);

// Bounds of several keys.
inline constexpr double kMaxFactor = 1e6;
inline constexpr uint64_t kMaxSteps = uint64_t{1} << 32;

// The name of a codec, which the codec table finds later: letters, digits and _:.
struct CodecName {};

template <class... Parts>
absl::Status Refuse(absl::string_view key, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", parts...));
}

template <class T>
absl::Status CheckRule(absl::string_view, const T&, AnyValue) {
  return absl::OkStatus();
}

template <class T>
absl::Status CheckRule(absl::string_view key, T value, Range range) {
  const bool is_negative = std::numeric_limits<T>::is_signed && value < T{0};
  const auto whole = static_cast<uint64_t>(value);
  if (!is_negative && whole >= range.low && whole <= range.high) return absl::OkStatus();
  return Refuse(key, "expected ", range.low, " to ", range.high, ", found ", value);
}

absl::Status CheckRule(absl::string_view key, double value, const Reals& range);
// As Reals, for ranges that also hold negative numbers.
absl::Status CheckSigned(absl::string_view key, double value, double low, double high);

// Letters, digits and the characters of `others`, at most 256 in all: nothing that could break a
// line or a field of the canonical text, a file name, or a terminal. An empty text passes.
absl::Status CheckCharacters(absl::string_view key, absl::string_view name,
                             absl::string_view others);
// As CheckCharacters, and not empty.
absl::Status CheckName(absl::string_view key, absl::string_view name, absl::string_view others);

inline absl::Status CheckRule(absl::string_view key, absl::string_view name, CodecName) {
  return CheckName(key, name, "_:.");
}

// Visits keys and keeps the first refusal; the keys after it are not checked.
class RuleChecker {
 public:
  template <class T, class Rule>
  void Key(absl::string_view key, const T* value, const Rule& rule, absl::string_view /*help*/) {
    if (status_.ok()) status_ = CheckRule(key, *value, rule);
  }
  template <class T, class Rule>
  void OptionalKey(absl::string_view key, const T* value, const T& /*usual*/, const Rule& rule,
                   absl::string_view help) {
    Key(key, value, rule, help);
  }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace eps

#endif  // EPS_BASE_JOB_KEY_RULES_H_
