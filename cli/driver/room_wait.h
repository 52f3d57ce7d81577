#ifndef EPS_CLI_DRIVER_ROOM_WAIT_H_
#define EPS_CLI_DRIVER_ROOM_WAIT_H_

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace eps {

class DriverHost;

// Calls `write` until it returns anything but ResourceExhausted, with pauses of 1 to 10 s, and
// returns that. While it waits, checks the host's processes and prints at most every 30 s what is
// missing, followed by `hint`. Returns the failure of a process, or Cancelled, with what is
// missing, once the host is interrupted.
absl::Status RetryWithoutRoom(const std::function<absl::Status()>& write, const std::string& hint,
                              DriverHost* host);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_ROOM_WAIT_H_
