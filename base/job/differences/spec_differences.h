#ifndef EPS_BASE_JOB_DIFFERENCES_SPEC_DIFFERENCES_H_
#define EPS_BASE_JOB_DIFFERENCES_SPEC_DIFFERENCES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

// A key with different values in two canonical texts of job specs.
struct SpecDifference {
  std::string key;
  std::string text;  // "training.seed: 1 there, 2 here"
};

// Returns all keys with different values, in the order of `ours`, then those that only `theirs`
// has. The values of a key in several lines, one after the other, count as one. Of the lines of a
// list (tensor.0, tensor.1, …) only the first that differs is returned, with the number of others.
std::vector<SpecDifference> AllDifferences(absl::string_view theirs, absl::string_view ours);

}  // namespace eps

#endif  // EPS_BASE_JOB_DIFFERENCES_SPEC_DIFFERENCES_H_
