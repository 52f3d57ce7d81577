#ifndef EPS_BASE_CONFIG_VALUE_TEXT_H_
#define EPS_BASE_CONFIG_VALUE_TEXT_H_

// Parses and prints the values of configuration keys. Each kind has kType, its name on the
// reference page; Parse, which leaves `*out` unchanged if it returns InvalidArgument; and Print,
// whose text reads back to the same value, also through YAML. All functions are pure.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/config/config_keys.h"
#include "base/job/names.h"
#include "base/job/unknown_name.h"
#include "base/status_macros.h"

namespace eps {

// An unparsed value: one text, or the items of a YAML sequence. An item that is a map is its text.
struct Value {
  std::string text;
  std::vector<std::string> items;
  bool is_list = false;
};

// Returns InvalidArgument: "expected <what>, found <value>".
absl::Status Expected(absl::string_view what, const Value& value);

// Any text.
struct TextKind {
  static constexpr const char* kType = "text";
  static absl::Status Parse(const Value& value, std::string* out);
  static std::string Print(const std::string& text);  // quoted where YAML needs it
};

// A text that may also be a YAML list of addresses.
struct AddressListKind : TextKind {
  static absl::Status Parse(const Value& value, std::string* out);
};

// An integer. It is never negative: all integer keys are counts or sizes.
struct IntegerKind {
  static constexpr const char* kType = "integer";
  template <typename T>
  static absl::Status Parse(const Value& value, T* out) {
    constexpr T kMax = std::numeric_limits<T>::max();
    uint64_t parsed = 0;
    if (value.is_list || !absl::SimpleAtoi(value.text, &parsed) ||
        parsed > static_cast<uint64_t>(kMax)) {
      return Expected(absl::StrCat("an integer from 0 to ", kMax), value);
    }
    *out = static_cast<T>(parsed);
    return absl::OkStatus();
  }
  template <typename T>
  static std::string Print(T integer) {
    return absl::StrCat(integer);
  }
};

// A finite number.
struct NumberKind {
  static constexpr const char* kType = "number";
  static absl::Status Parse(const Value& value, double* out);
  static std::string Print(double number);  // the shortest text that reads back as the same bits
};

// true or false.
struct FlagKind {
  static constexpr const char* kType = "flag";
  static absl::Status Parse(const Value& value, bool* out);
  static std::string Print(bool flag) { return flag ? "true" : "false"; }
};

// One of the names of an enumeration.
struct NameKind {
  static constexpr const char* kType = "name";
  // The error also offers `other`, unless it is null.
  template <class E>
  static absl::Status Parse(const Value& value, E* out, const char* other = nullptr) {
    if (value.is_list) return Expected("a name", value);
    if (FindName(value.text, out)) return absl::OkStatus();
    std::vector<std::string> names = NamesOf<E>();
    if (other != nullptr) names.insert(names.begin(), other);
    return absl::InvalidArgumentError(UnknownNameText(value.text, names));
  }
  template <class E>
  static std::string Print(E value) {
    return NameOf(value);
  }
};

// Bytes, with or without a unit.
struct SizeKind {
  static constexpr const char* kType = "size";
  static absl::Status Parse(const Value& value, uint64_t* out);
  static std::string Print(uint64_t bytes);
};

// Milliseconds. The text must have a unit: a bare "60" would be ambiguous.
struct DurationKind {
  static constexpr const char* kType = "duration";
  static absl::Status Parse(const Value& value, int64_t* out);
  static std::string Print(int64_t ms);
};

// A duration of at least a second.
struct TimeoutKind : DurationKind {
  static constexpr int64_t kLeastMs = 1'000;
  static absl::Status Parse(const Value& value, int64_t* out);
};

// Returns the items of "[a, b]" or "a,b"; "" and "[]" have none. Quotes have a meaning only inside
// brackets.
absl::Status ItemsOf(const Value& value, std::vector<std::string>* items);

// A list of values of kind Item.
template <class Item>
struct ListKind {
  static constexpr const char* kType = "list";
  template <typename T>
  static absl::Status Parse(const Value& value, std::vector<T>* out) {
    std::vector<std::string> items;
    EPS_RETURN_IF_ERROR(ItemsOf(value, &items));
    std::vector<T> parsed(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      EPS_RETURN_IF_ERROR(Item::Parse(Value{items[i], {}, false}, &parsed[i]));
    }
    *out = std::move(parsed);
    return absl::OkStatus();
  }
  template <typename T>
  static std::string Print(const std::vector<T>& list) {
    return absl::StrCat(
        "[",
        absl::StrJoin(list, ", ",
                      [](std::string* out, const T& item) { out->append(Item::Print(item)); }),
        "]");
  }
};

// Rules of parameter groups: a YAML list of maps.
struct GroupRulesKind {
  static constexpr const char* kType = "list of maps";
  static absl::Status Parse(const Value& value, std::vector<GroupRule>* out);
  static std::string Print(const std::vector<GroupRule>& rules);
};

// The text of an open value.
inline constexpr char kAuto[] = "auto";

// "auto", or a value of `Kind`.
template <class Kind>
struct AutoKind {
  static constexpr const char* kType = Kind::kType;
  template <class T>
  static absl::Status Parse(const Value& value, std::optional<T>* out) {
    if (!value.is_list && value.text == kAuto) {
      out->reset();
      return absl::OkStatus();
    }
    T parsed{};
    if constexpr (std::is_enum_v<T>) {
      EPS_RETURN_IF_ERROR(Kind::Parse(value, &parsed, kAuto));
    } else {
      EPS_RETURN_IF_ERROR(Kind::Parse(value, &parsed));
    }
    *out = std::move(parsed);
    return absl::OkStatus();
  }
  template <class T>
  static std::string Print(const std::optional<T>& value) {
    return value.has_value() ? Kind::Print(*value) : kAuto;
  }
};

// Returns an object of the kind for values of type T under a rule.
template <class T, class Rule>
constexpr auto KindOf() {
  if constexpr (std::is_same_v<Rule, SizeText>) {
    return SizeKind();
  } else if constexpr (std::is_same_v<Rule, DurationText> && std::is_integral_v<T>) {
    return DurationKind();
  } else if constexpr (std::is_same_v<Rule, TimeoutText>) {
    return TimeoutKind();
  } else if constexpr (std::is_same_v<Rule, DurationText>) {
    return AutoKind<DurationKind>();
  } else if constexpr (std::is_same_v<Rule, AddressList>) {
    return AddressListKind();
  } else if constexpr (std::is_enum_v<T>) {
    return NameKind();
  } else if constexpr (std::is_same_v<T, bool>) {
    return FlagKind();
  } else if constexpr (std::is_same_v<T, double>) {
    return NumberKind();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return TextKind();
  } else if constexpr (std::is_integral_v<T>) {
    return IntegerKind();
  } else if constexpr (std::is_same_v<T, std::vector<GroupRule>>) {
    return GroupRulesKind();
  } else if constexpr (std::is_same_v<T, std::vector<typename T::value_type>>) {
    return ListKind<decltype(KindOf<typename T::value_type, AnyValue>())>();
  } else {
    return AutoKind<decltype(KindOf<typename T::value_type, AnyValue>())>();
  }
}

}  // namespace eps

#endif  // EPS_BASE_CONFIG_VALUE_TEXT_H_
