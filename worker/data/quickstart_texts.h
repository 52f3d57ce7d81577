#ifndef EPS_WORKER_DATA_QUICKSTART_TEXTS_H_
#define EPS_WORKER_DATA_QUICKSTART_TEXTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eps {

// Returns the text files that the quickstart trains on: regular files below
// /usr/share/common-licenses, sorted. NotFound if there are none.
absl::StatusOr<std::vector<std::string>> QuickstartTextFiles();

}  // namespace eps

#endif  // EPS_WORKER_DATA_QUICKSTART_TEXTS_H_
