#ifndef EPS_CLI_COMMANDS_STATUS_COMMAND_H_
#define EPS_CLI_COMMANDS_STATUS_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "base/config/config.h"
#include "eps/v1/control.pb.h"

namespace eps {

// `eps status`: asks every server of servers.addresses. All are shown, then the first error is
// returned: Unavailable names a server that does not answer.
absl::Status RunStatus(const Config& config, bool json);

// One server as lines for people, or as one JSON object without newline.
std::string StatusText(const std::string& address, const v1::StatusReply& status);
// Where each stage's time goes on that server, and what quantizing just in time saves; empty before
// the first fetch.
std::string StageTimesText(const v1::StatusReply& status);
std::string StatusJson(const std::string& address, const v1::StatusReply& status);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_STATUS_COMMAND_H_
