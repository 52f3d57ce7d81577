#ifndef EPS_PLANNER_QUANTITY_TEXT_H_
#define EPS_PLANNER_QUANTITY_TEXT_H_

// Quantities as people write them: a number, a prefix and a unit without which it means nothing.
// Pure functions.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/units.h"

namespace eps::planner {

// "16GB", "1.5 TiB": a decimal number, a prefix (k, M, G, T, P, or Ki, Mi, Gi, Ti, Pi) and the
// unit: B, B/s or FLOP/s; of times s, ms or us; of prices $/h. InvalidArgument says what was
// expected; numbers have to be finite and above zero, times and prices may be zero.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text);
absl::StatusOr<BytesPerSecond> ParseBytesPerSecond(absl::string_view text);
absl::StatusOr<FlopsPerSecond> ParseFlopsPerSecond(absl::string_view text);
absl::StatusOr<Seconds> ParseSeconds(absl::string_view text);
absl::StatusOr<DollarsPerSecond> ParsePrice(absl::string_view text);

// Text that the functions above read back to the same value, as short as that goes.
std::string ExactText(double number);
std::string ExactText(Bytes bytes);
std::string ExactText(BytesPerSecond rate);
std::string ExactText(FlopsPerSecond rate);
std::string ExactText(Seconds time);
std::string ExactText(DollarsPerSecond price);

// For people, three digits: "16.2 GB", "1.50 TB/s", "12.3 ms".
std::string ShortText(Bytes bytes);
std::string ShortText(BytesPerSecond rate);
std::string ShortText(FlopsPerSecond rate);
std::string ShortText(Seconds time);
std::string ShortCount(double count);  // "17.0 B" (1e9), "1.2 M", "830"

}  // namespace eps::planner

#endif  // EPS_PLANNER_QUANTITY_TEXT_H_
