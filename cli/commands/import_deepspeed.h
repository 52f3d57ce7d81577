#ifndef EPS_CLI_COMMANDS_IMPORT_DEEPSPEED_H_
#define EPS_CLI_COMMANDS_IMPORT_DEEPSPEED_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Translates a DeepSpeed configuration into YAML for Config. Appends a comment for each key without
// an equivalent: its value, and why EPS does not need or support it. `origin`, the file's name,
// appears in the first line and in errors.
//
// `json` is untrusted. InvalidArgument if it is not one JSON object, is larger than 1 MiB, nests
// deeper than 32 levels or names a key twice, or, with key and value, if a translated key has an
// invalid value. Unknown keys are listed, not refused.
absl::StatusOr<std::string> ImportDeepSpeed(absl::string_view json, const std::string& origin);

// `eps config import-deepspeed FILE`: prints the translation of a file.
absl::Status RunImportDeepSpeed(const std::string& path);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_IMPORT_DEEPSPEED_H_
