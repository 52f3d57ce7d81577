#ifndef EPS_CLI_DRIVER_STATUS_TEXT_H_
#define EPS_CLI_DRIVER_STATUS_TEXT_H_

#include <string>

#include "eps/v1/control.pb.h"
#include "nlohmann/json.hpp"

namespace eps {

// Returns a server's status as human-readable lines.
std::string StatusText(const std::string& address, const v1::StatusReply& status);
// Returns the part of StatusText about stages: the times of each stage on that server, and the
// memory that just-in-time quantization saves. Empty before the first fetch.
std::string StageTimesText(const v1::StatusReply& status);
// Returns a server's status as one JSON object. A server may truncate a text in the middle of a
// character: write the object with LineOf.
nlohmann::ordered_json StatusJson(const std::string& address, const v1::StatusReply& status);
// Returns JSON on one line, without a newline. Bytes that are not UTF-8 are replaced.
std::string LineOf(const nlohmann::ordered_json& json);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_STATUS_TEXT_H_
