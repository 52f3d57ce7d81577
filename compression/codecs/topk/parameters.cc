#include "compression/codecs/topk/parameters.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps::topk {
namespace {

// With nine places, products of digits and numbers below 10^places stay below 2^63.
constexpr size_t kMaxPlaces = 9;

absl::Status ParseFraction(const std::string& text, Parameters* parameters) {
  const absl::Status refusal = absl::InvalidArgumentError(
      absl::StrCat("FRACTION is \"", text, "\", expected a decimal number in (0, 0.5] like 0.01, ",
                   "with at most ", kMaxPlaces, " places"));
  if (text.size() < 3 || text.size() > 2 + kMaxPlaces || text.compare(0, 2, "0.") != 0) {
    return refusal;
  }
  for (const char c : text.substr(2)) {
    if (c < '0' || c > '9') return refusal;
    parameters->digits = 10 * parameters->digits + static_cast<uint64_t>(c - '0');
    parameters->power_of_ten *= 10;
  }
  if (parameters->digits == 0 || 2 * parameters->digits > parameters->power_of_ten) return refusal;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Parameters> ParseParameters(const std::vector<std::string>& pieces) {
  if (pieces.empty()) return absl::InvalidArgumentError("its FRACTION is missing");
  Parameters parameters;
  const absl::Status fraction = ParseFraction(pieces[0], &parameters);
  if (!fraction.ok()) return fraction;
  size_t i = 1;
  if (i < pieces.size() && pieces[i] == "raw32") {
    parameters.raw32 = true;
    ++i;
  }
  if (i < pieces.size() && pieces[i] == "fp32") {
    parameters.fp32 = true;
    ++i;
  }
  if (i < pieces.size() && pieces[i] == "sampled") {
    parameters.sampled = true;
    ++i;
  }
  if (i < pieces.size() && pieces[i] == "tensor") {
    if (parameters.sampled) {
      return absl::InvalidArgumentError(
          "sampled and tensor exclude each other: a sample covers one chunk, and tensor selects "
          "exactly");
    }
    parameters.tensor = true;
    ++i;
  }
  if (i < pieces.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", pieces[i], "\" was not expected as parameter ", i + 1,
        "; after FRACTION, raw32, then fp32, and then one of sampled and tensor may follow, each "
        "once"));
  }
  return parameters;
}

}  // namespace eps::topk
