#include "storage/csd/rates/device_rates.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace eps {
namespace {

constexpr std::array kFields = {&DeviceRates::host_read,        &DeviceRates::host_write,
                                &DeviceRates::device_read,      &DeviceRates::device_write,
                                &DeviceRates::internal,         &DeviceRates::update,
                                &DeviceRates::decompress_update};

}  // namespace

std::string ToText(const DeviceRates& rates) {
  std::string text;
  for (const auto field : kFields) {
    absl::StrAppend(&text, text.empty() ? "" : ",", absl::StrFormat("%.17g", rates.*field));
  }
  return text;
}

absl::StatusOr<DeviceRates> ParseDeviceRates(absl::string_view text) {
  const std::vector<absl::string_view> numbers = absl::StrSplit(text, ',');
  DeviceRates rates;
  bool good = numbers.size() == kFields.size();
  for (size_t i = 0; good && i < kFields.size(); ++i) {
    double* const rate = &(rates.*kFields[i]);
    good = absl::SimpleAtod(numbers[i], rate) && std::isfinite(*rate) && *rate >= 0;
  }
  if (good) return rates;
  return absl::InvalidArgumentError(absl::StrCat("rates of a device: \"", text, "\" found, ",
                                                 kFields.size(),
                                                 " numbers of bytes per second expected"));
}

}  // namespace eps
