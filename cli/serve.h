#ifndef EPS_CLI_SERVE_H_
#define EPS_CLI_SERVE_H_

#include "absl/status/status.h"
#include "common/config.h"

namespace eps {

// `eps serve`: one parameter server in this process, until SIGTERM or SIGINT.
absl::Status RunServe(const Config& config);

}  // namespace eps

#endif  // EPS_CLI_SERVE_H_
