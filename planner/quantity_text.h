#ifndef EPS_PLANNER_QUANTITY_TEXT_H_
#define EPS_PLANNER_QUANTITY_TEXT_H_

// Parses and formats quantities: a number, a prefix and a mandatory unit. Pure functions.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/units.h"

namespace eps::planner {

// Parses a decimal number with a prefix (k, M, G, T, P, or Ki, Mi, Gi, Ti, Pi) and its unit, as in
// "16GB" or "1.5 TiB". The units are B, B/s and FLOP/s; times take s, ms or us without a prefix,
// prices take $/h. Numbers must be finite and positive; times and prices may be zero.
// InvalidArgument says what was expected.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text);
absl::StatusOr<BytesPerSecond> ParseBytesPerSecond(absl::string_view text);
absl::StatusOr<FlopsPerSecond> ParseFlopsPerSecond(absl::string_view text);
absl::StatusOr<Seconds> ParseSeconds(absl::string_view text);
absl::StatusOr<DollarsPerSecond> ParsePrice(absl::string_view text);

// Returns the shortest text that the functions above parse to the same value.
std::string ExactText(double number);
std::string ExactText(Bytes bytes);
std::string ExactText(BytesPerSecond rate);
std::string ExactText(FlopsPerSecond rate);
std::string ExactText(Seconds time);
std::string ExactText(DollarsPerSecond price);

// Returns text with three significant digits: "16.2 GB", "1.50 TB/s", "12.3 ms".
std::string ShortText(Bytes bytes);
std::string ShortText(BytesPerSecond rate);
std::string ShortText(FlopsPerSecond rate);
std::string ShortText(Seconds time);
std::string ShortCount(double count);  // "17.0 B" (1e9), "1.2 M", "830"

}  // namespace eps::planner

#endif  // EPS_PLANNER_QUANTITY_TEXT_H_
