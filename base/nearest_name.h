#ifndef EPS_BASE_NEAREST_NAME_H_
#define EPS_BASE_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

// Returns the candidate with the smallest edit distance to `name`, where a swap of neighbors is one
// edit, the first of equals, or an empty text if more than a third of the letters of every
// candidate would have to change. For the "did you mean" of error messages. Takes time proportional
// to the product of the lengths: bound the length of a `name` that comes from outside.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace eps

#endif  // EPS_BASE_NEAREST_NAME_H_
