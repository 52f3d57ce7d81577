#include "base/text.h"

#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps {

std::string FormatSeconds(double seconds) {
  const uint64_t s = seconds > 0 ? static_cast<uint64_t>(std::llround(seconds)) : 0;
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 48 * 3600) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f %s", bytes, kUnits[unit])
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string FormatCount(uint64_t count) {
  std::string digits = absl::StrCat(count);
  for (size_t place = 3; place < digits.size(); place += 4) {
    digits.insert(digits.size() - place, ",");
  }
  return digits;
}

std::string FormatScientific(double value) {
  std::string text = absl::StrFormat("%.2e", value);
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;  // inf, nan
  // C prints at least two digits of exponent and a plus sign.
  std::string exponent = text.substr(e + 1);
  const bool negative = exponent[0] == '-';
  exponent.erase(0, exponent.find_first_not_of("+-0"));
  if (exponent.empty() || exponent.find_first_of("123456789") == std::string::npos) exponent = "0";
  return absl::StrCat(text.substr(0, e), "e", negative ? "-" : "", exponent);
}

}  // namespace eps
