#ifndef EPS_BASE_TEXT_H_
#define EPS_BASE_TEXT_H_

// Figures as people read them: in progress lines, tables and summaries. Never parsed again.

#include <cstdint>
#include <string>

namespace eps {

// Rounds to whole seconds and keeps the two largest units: "45s", "3m20s", "2h11m", "4d03h".
// Negative values and NaN give "0s".
std::string FormatSeconds(double seconds);
// In binary units, with one digit after the point: "512 B", "1.5 MiB".
std::string FormatBytes(double bytes);
// Groups the digits by thousands: "1,842".
std::string FormatCount(uint64_t count);
// Three significant digits, with the exponent as short as possible: "2.98e-4".
std::string FormatScientific(double value);

}  // namespace eps

#endif  // EPS_BASE_TEXT_H_
