#ifndef EPS_COMPRESSION_PLUGIN_CHECK_CHECKS_H_
#define EPS_COMPRESSION_PLUGIN_CHECK_CHECKS_H_

// The checks of a codec, as functions. Each returns its finding, or an empty text if the codec
// keeps the contract. A codec that breaks it grossly ends the process instead.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/plugin/check/call_threads.h"
#include "compression/plugin/check/codec_trial.h"

namespace eps {

// The things that checks need and a fenced process cannot create.
struct CodecTools {
  std::vector<CodecArrays> callers;      // kTrialCallers of them
  std::unique_ptr<CallThreads> threads;  // as many

  // The arrays of checks that call from one thread.
  CodecArrays& arrays() { return callers[0]; }

  // Internal if the kernel refuses.
  static absl::StatusOr<CodecTools> New(const CodecPlugin* plugin);
};

// Each array ends right before an inaccessible page, then begins right after one. Says before each
// call where it is (base/plugin/check/report_lines.h).
std::string CheckCodecBounds(CodecTools* tools);
// No encoding is larger than the description says.
std::string CheckCodecSize(CodecTools* tools);
// Encodings are the same each time, and decode accepts them and writes all elements.
std::string CheckRoundTrip(CodecTools* tools);
// Bytes and elements are the same at every alignment of 1 and 4 bytes.
std::string CheckCodecAlignment(CodecTools* tools);
// Bytes and elements do not depend on other calls, before or at the same time.
std::string CheckCodecThreads(CodecTools* tools);
// Elements that a server accepts decode to such elements, and one that it refuses does not vanish.
std::string CheckCodecValues(CodecTools* tools);
// With error feedback, every element of a gradient arrives in time.
std::string CheckFeedback(CodecTools* tools);
// Bytes that encode has not written do no harm.
std::string CheckHostileBytes(CodecTools* tools);
// The floating-point control and the signal mask stay as they are.
std::string CheckCodecMode(CodecTools* tools);

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_CHECK_CHECKS_H_
