#ifndef EPS_WORKER_RUN_GENERATE_H_
#define EPS_WORKER_RUN_GENERATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/options.h"

namespace eps {

// Returns the prompt and its continuation: text if the vocabulary consists of bytes, otherwise
// token ids ("1,2,3"). Returns InvalidArgument with --prompt-ids for text with another vocabulary;
// other errors as Generator.
absl::StatusOr<std::string> RunGenerate(const GenerateOptions& options);

// Returns `bytes` with everything that is not UTF-8 replaced by U+FFFD: one for each maximal part
// of a sequence, as the Unicode standard recommends.
std::string ReplaceInvalidUtf8(absl::string_view bytes);

}  // namespace eps

#endif  // EPS_WORKER_RUN_GENERATE_H_
