#ifndef EPS_CLI_LAUNCH_SERVE_H_
#define EPS_CLI_LAUNCH_SERVE_H_

#include "absl/status/status.h"
#include "base/config/config.h"

namespace eps {

// What a server's line on stdout begins with, before its address.
inline constexpr char kListeningPrefix[] = "eps serve: listening on ";

// `eps serve`: one parameter server in this process, until SIGTERM or SIGINT. An error was already
// said on stderr; its status has no text and carries the exit code.
absl::Status RunServe(const Config& config);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVE_H_
