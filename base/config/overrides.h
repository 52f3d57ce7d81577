#ifndef EPS_BASE_CONFIG_OVERRIDES_H_
#define EPS_BASE_CONFIG_OVERRIDES_H_

// Parses the arguments that set configuration keys, for `eps` and `eps-worker`.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps {

// A configuration key and its value.
using Setting = std::pair<std::string, std::string>;

// Splits arguments of the forms --key=value and --key value, in order. Calls `check` with the part
// of each argument before the equals sign; `check` returns an error if that is not a key.
// InvalidArgument for a key without a value; a value after a space does not begin with "--".
absl::StatusOr<std::vector<Setting>> ReadOverrides(
    const std::vector<std::string>& arguments,
    const std::function<absl::Status(const std::string& name)>& check);

// Returns the value of a list key with quoted items, because they may contain commas and spaces:
// ["a", "b, c"].
std::string ListText(const std::vector<std::string>& items);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_OVERRIDES_H_
