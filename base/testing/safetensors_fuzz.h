#ifndef EPS_BASE_TESTING_SAFETENSORS_FUZZ_H_
#define EPS_BASE_TESTING_SAFETENSORS_FUZZ_H_

// For tests and fuzzers: the properties of the safetensors reader that hold for any bytes.

#include "absl/strings/string_view.h"

namespace eps {

// Opens `bytes` as a .safetensors file and reads every tensor of what it accepts. False if refused.
// Ends the process if a refusal does not name the file and its fault in a short DataLoss, or if an
// accepted file is not what its header says.
bool ReadUntrustedSafetensors(absl::string_view bytes);

// The same for an index of shards.
bool ReadUntrustedIndex(absl::string_view bytes);

}  // namespace eps

#endif  // EPS_BASE_TESTING_SAFETENSORS_FUZZ_H_
