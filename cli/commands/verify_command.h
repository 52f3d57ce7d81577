#ifndef EPS_CLI_COMMANDS_VERIFY_COMMAND_H_
#define EPS_CLI_COMMANDS_VERIFY_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eps {

// `eps verify`: trains as `eps train` would with these arguments, through servers and wire, with a
// checkpoint at every step (training.steps is 5 unless given), then lets eps-verify recompute
// every step in one process and compare bit for bit. Without --out the run lies in a temporary
// folder, which is removed if all is equal. With --run=DIR only the comparison of a run that is
// there. A status with ExitCode::kDifferent and no text: compared, and different.
absl::Status RunVerifyCommand(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_VERIFY_COMMAND_H_
