#ifndef EPS_WORKER_RUN_GENERATE_H_
#define EPS_WORKER_RUN_GENERATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/options.h"

namespace eps {

// Returns the prompt and its continuation, or the answer alone to a message (--chat). A prompt of
// token ids gives token ids ("1,2,3"), any other one gives text: a vocabulary of 256 is bytes, for
// others the tokenizer in the model's folder is started (worker/tokenizer_process.h). NotFound
// without a tokenizer or a Python; other errors as Generator and TokenizerProcess.
absl::StatusOr<std::string> RunGenerate(const GenerateOptions& options);

// Returns `bytes` with everything that is not UTF-8 replaced by U+FFFD: one for each maximal part
// of a sequence, as the Unicode standard recommends.
std::string ReplaceInvalidUtf8(absl::string_view bytes);

}  // namespace eps

#endif  // EPS_WORKER_RUN_GENERATE_H_
