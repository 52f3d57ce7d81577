#ifndef EPS_CLI_COMMANDS_IMPORT_DEEPSPEED_H_
#define EPS_CLI_COMMANDS_IMPORT_DEEPSPEED_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// The configuration, as YAML that Config reads, that means what a DeepSpeed configuration says.
// What has no equivalent follows as comments: each key with its value, and why it is not needed
// here, or not there. `origin` (the file's name) stands in the first line and in the errors.
//
// `json` is hostile: InvalidArgument if it is not one JSON object, is larger than 1 MiB, nests
// deeper than 32 levels, names a key twice, or gives a key that is translated a value that makes no
// sense (the message has key and value). A key that nobody knows is listed, not refused.
absl::StatusOr<std::string> ImportDeepSpeed(absl::string_view json, const std::string& origin);

// `eps config import-deepspeed FILE`: prints it.
absl::Status RunImportDeepSpeed(const std::string& path);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_IMPORT_DEEPSPEED_H_
