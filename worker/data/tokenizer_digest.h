#ifndef EPS_WORKER_DATA_TOKENIZER_DIGEST_H_
#define EPS_WORKER_DATA_TOKENIZER_DIGEST_H_

#include <string>

#include "absl/status/statusor.h"

namespace eps {

// Returns the digest of the tokenizer whose files are in `folder` (docs/formats/data.md), or an
// empty text if there are none. Errors as MappedFile::Open.
absl::StatusOr<std::string> TokenizerDigest(const std::string& folder);

}  // namespace eps

#endif  // EPS_WORKER_DATA_TOKENIZER_DIGEST_H_
