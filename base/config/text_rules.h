#ifndef EPS_BASE_CONFIG_TEXT_RULES_H_
#define EPS_BASE_CONFIG_TEXT_RULES_H_

namespace eps {

// Rules that also determine how a value is written.
struct SizeText {};      // a uint64_t: "16GiB"
struct DurationText {};  // an int64_t of milliseconds: "30s"
struct TimeoutText {};   // as DurationText, and at least a second
struct AddressList {};   // a text that may also be a YAML list

}  // namespace eps

#endif  // EPS_BASE_CONFIG_TEXT_RULES_H_
