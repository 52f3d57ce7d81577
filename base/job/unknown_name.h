#ifndef EPS_BASE_JOB_UNKNOWN_NAME_H_
#define EPS_BASE_JOB_UNKNOWN_NAME_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// Returns "'value' is unknown, did you mean 'nearest'?; choose one of …", without the question if
// no name is close.
std::string UnknownNameText(absl::string_view value, const std::vector<std::string>& names);

// The refusal of a value that is not one of `names`: InvalidArgument with the key, the value, the
// nearest name if one is close, and all of them.
absl::Status UnknownName(absl::string_view key, absl::string_view value,
                         const std::vector<std::string>& names);

}  // namespace eps

#endif  // EPS_BASE_JOB_UNKNOWN_NAME_H_
