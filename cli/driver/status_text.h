#ifndef EPS_CLI_DRIVER_STATUS_TEXT_H_
#define EPS_CLI_DRIVER_STATUS_TEXT_H_

#include <string>

#include "eps/v1/control.pb.h"

namespace eps {

// Returns a server's status as human-readable lines.
std::string StatusText(const std::string& address, const v1::StatusReply& status);
// Returns the part of StatusText about stages: the times of each stage on that server, and the
// memory that just-in-time quantization saves. Empty before the first fetch.
std::string StageTimesText(const v1::StatusReply& status);
// Returns a server's status as one JSON object, without a newline.
std::string StatusJson(const std::string& address, const v1::StatusReply& status);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_STATUS_TEXT_H_
