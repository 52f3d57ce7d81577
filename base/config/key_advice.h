#ifndef EPS_BASE_CONFIG_KEY_ADVICE_H_
#define EPS_BASE_CONFIG_KEY_ADVICE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

// Returns what a name that is not one of `keys` may mean, for the error about it: the keys of that
// name in other sections ("did you mean optimizer.lr?"), or what to use instead of a setting of
// other trainers ("use training.steps"). Empty if nothing is known; the spelling is not compared.
// `name` has underscores, not hyphens.
std::string KeyAdvice(absl::string_view name, const std::vector<std::string>& keys);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_KEY_ADVICE_H_
