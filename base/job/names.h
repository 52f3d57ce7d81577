#ifndef EPS_BASE_JOB_NAMES_H_
#define EPS_BASE_JOB_NAMES_H_

// Names of enumerated values as the job's text and the configuration write them. Each enumeration
// specializes kNames next to its definition, in the order of its enumerators, which count from 0.

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

template <class E>
inline constexpr std::array<const char*, 0> kNames{};

template <class E>
constexpr const char* NameOf(E value) {
  static_assert(std::is_enum_v<E>);
  return kNames<E>[static_cast<size_t>(value)];
}

// All names of an enumeration, for messages.
template <class E>
std::vector<std::string> NamesOf() {
  return std::vector<std::string>(kNames<E>.begin(), kNames<E>.end());
}

// Sets `*value` and returns true if `text` is one of the names.
template <class E>
bool FindName(absl::string_view text, E* value) {
  for (size_t i = 0; i < kNames<E>.size(); ++i) {
    if (text != kNames<E>[i]) continue;
    *value = static_cast<E>(i);
    return true;
  }
  return false;
}

}  // namespace eps

#endif  // EPS_BASE_JOB_NAMES_H_
