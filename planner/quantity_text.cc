#include "planner/quantity_text.h"

#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace eps::planner {
namespace {

constexpr double kHour = 3600;

// A suffix for a unit, and its value in the SI unit.
struct Scale {
  const char* suffix;
  double factor;
};

constexpr std::pair<const char*, double> kPrefixes[] = {
    {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}, {"Pi", 0x1p50}, {"k", 1e3},
    {"M", 1e6},     {"G", 1e9},     {"T", 1e12},    {"P", 1e15},    {"", 1},
};
constexpr Scale kTimes[] = {{"ms", 1e-3}, {"us", 1e-6}, {"s", 1}};
constexpr Scale kPrices[] = {{"$/h", 1 / kHour}};

enum class Zero { kRefused, kAllowed };

absl::StatusOr<double> ParseNumber(absl::string_view text, absl::string_view number, Zero zero) {
  double value = 0;
  const bool plain = !number.empty() && (absl::ascii_isdigit(number[0]) || number[0] == '.') &&
                     number.find_first_not_of("0123456789.eE+-") == absl::string_view::npos;
  if (!plain || !absl::SimpleAtod(number, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("found \"", text, "\", expected a number before the unit"));
  }
  if (value == 0 && zero == Zero::kRefused) {
    return absl::InvalidArgumentError(absl::StrCat("found \"", text, "\", expected more than 0"));
  }
  return value;
}

// Parses a number with a prefix and `unit`.
absl::StatusOr<double> ParsePrefixed(absl::string_view text, absl::string_view unit) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (absl::ConsumeSuffix(&rest, unit)) {
    for (const auto& [prefix, factor] : kPrefixes) {
      absl::string_view number = rest;
      if (!absl::ConsumeSuffix(&number, prefix)) continue;
      EPS_ASSIGN_OR_RETURN(
          const double value,
          ParseNumber(text, absl::StripTrailingAsciiWhitespace(number), Zero::kRefused));
      if (std::isfinite(value * factor)) return value * factor;
      break;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "found \"", text, "\", expected a number with its unit, like 16G", unit, " or 1.5Ti", unit));
}

template <size_t n>
absl::StatusOr<double> ParseScaled(absl::string_view text, const Scale (&scales)[n],
                                   absl::string_view example) {
  for (const Scale& scale : scales) {
    absl::string_view number = absl::StripAsciiWhitespace(text);
    if (!absl::ConsumeSuffix(&number, scale.suffix)) continue;
    EPS_ASSIGN_OR_RETURN(
        const double value,
        ParseNumber(text, absl::StripTrailingAsciiWhitespace(number), Zero::kAllowed));
    return value * scale.factor;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("found \"", text, "\", expected a number with its unit, like ", example));
}

std::string ExactPrefixed(double value, absl::string_view unit) {
  for (const auto& [prefix, factor] : {std::pair<const char*, double>{"P", 1e15},
                                       {"T", 1e12},
                                       {"G", 1e9},
                                       {"M", 1e6},
                                       {"k", 1e3}}) {
    if (value < factor) continue;
    const std::string number = absl::StrFormat("%g", value / factor);
    if (std::strtod(number.c_str(), nullptr) * factor == value) {
      return absl::StrCat(number, prefix, unit);
    }
  }
  return absl::StrCat(ExactText(value), unit);
}

// Formats three significant digits with a prefix.
std::string ThreeDigits(double value, absl::string_view unit, absl::string_view prefixes) {
  size_t prefix = 0;
  double shown = value;
  for (; prefix + 1 < prefixes.size() && std::abs(shown) >= 999.5; ++prefix) shown /= 1000;
  const int decimals = shown >= 99.95 ? 0 : shown >= 9.995 ? 1 : 2;
  const std::string number = prefix == 0 && shown == std::floor(shown)
                                 ? absl::StrFormat("%.0f", shown)
                                 : absl::StrFormat("%.*f", decimals, shown);
  std::string text = absl::StrCat(number, " ");
  if (prefix > 0) text += prefixes[prefix];
  absl::StrAppend(&text, unit);
  return std::string(absl::StripTrailingAsciiWhitespace(text));
}

constexpr char kDecimal[] = " kMGTPE";

}  // namespace

absl::StatusOr<Bytes> ParseBytes(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const double value, ParsePrefixed(text, "B"));
  return Bytes(value);
}

absl::StatusOr<BytesPerSecond> ParseBytesPerSecond(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const double value, ParsePrefixed(text, "B/s"));
  return BytesPerSecond(value);
}

absl::StatusOr<FlopsPerSecond> ParseFlopsPerSecond(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const double value, ParsePrefixed(text, "FLOP/s"));
  return FlopsPerSecond(value);
}

absl::StatusOr<Seconds> ParseSeconds(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const double value, ParseScaled(text, kTimes, "5us, 10ms or 2s"));
  return Seconds(value);
}

absl::StatusOr<DollarsPerSecond> ParsePrice(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const double value, ParseScaled(text, kPrices, "2.5$/h"));
  return DollarsPerSecond(value);
}

std::string ExactText(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string ExactText(Bytes bytes) { return ExactPrefixed(bytes.value(), "B"); }
std::string ExactText(BytesPerSecond rate) { return ExactPrefixed(rate.value(), "B/s"); }
std::string ExactText(FlopsPerSecond rate) { return ExactPrefixed(rate.value(), "FLOP/s"); }
std::string ExactText(Seconds time) { return absl::StrCat(ExactText(time.value()), "s"); }

std::string ExactText(DollarsPerSecond price) {
  // Multiplying by 3600 rounds, so try the neighbouring doubles for one that reads back exactly.
  const double hourly = price.value() * kHour;
  for (const double candidate :
       {hourly, std::nextafter(hourly, 0), std::nextafter(hourly, 1e300)}) {
    if (candidate * kPrices[0].factor == price.value()) {
      return absl::StrCat(ExactText(candidate), "$/h");
    }
  }
  return absl::StrCat(ExactText(hourly), "$/h");
}

std::string ShortText(Bytes bytes) { return ThreeDigits(bytes.value(), "B", kDecimal); }
std::string ShortText(BytesPerSecond rate) { return ThreeDigits(rate.value(), "B/s", kDecimal); }
std::string ShortText(FlopsPerSecond rate) { return ThreeDigits(rate.value(), "FLOP/s", kDecimal); }

std::string ShortText(Seconds time) {
  if (time.value() == 0 || time.value() >= 1) return ThreeDigits(time.value(), "s", " ");
  if (time.value() >= 1e-3) return ThreeDigits(time.value() * 1e3, "ms", " ");
  return ThreeDigits(time.value() * 1e6, "us", " ");
}

std::string ShortCount(double count) { return ThreeDigits(count, "", " KMBT"); }

}  // namespace eps::planner
