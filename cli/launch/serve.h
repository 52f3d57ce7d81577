#ifndef EPS_CLI_LAUNCH_SERVE_H_
#define EPS_CLI_LAUNCH_SERVE_H_

#include "absl/status/status.h"
#include "base/config/config.h"

namespace eps {

// The start of the line that a server prints on stdout; its address follows.
inline constexpr char kListeningPrefix[] = "eps serve: listening on ";

// `eps serve`: runs one parameter server in this process until SIGTERM or SIGINT. Prints errors on
// stderr and returns them as a status without text that carries the exit code.
absl::Status RunServe(const Config& config);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVE_H_
