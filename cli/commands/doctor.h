#ifndef EPS_CLI_COMMANDS_DOCTOR_H_
#define EPS_CLI_COMMANDS_DOCTOR_H_

#include "absl/status/status.h"
#include "base/config/config.h"

namespace eps {

// `eps doctor`: looks at this machine and prints one line per finding: "ok", "warn" (works, but
// slower or with less) or "fail" (something will not work), what was found, what to do. Ends with
// an error if anything failed.
absl::Status RunDoctor(const Config& config);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_DOCTOR_H_
