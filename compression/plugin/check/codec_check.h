#ifndef EPS_COMPRESSION_PLUGIN_CHECK_CODEC_CHECK_H_
#define EPS_COMPRESSION_PLUGIN_CHECK_CODEC_CHECK_H_

// Checks whether a plug-in codec keeps the contract of compression/plugin/eps_codec.h
// (base/plugin/check/plugin_check.h says how).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/plugin/check/plugin_check.h"
#include "compression/plugin/codec_plugin.h"

namespace eps {

// The speed of `encode` and `decode` on one thread, over arrays larger than the caches, and that of
// a loop that only copies the elements; measured in turn. All in GB/s of elements.
struct CodecSpeed {
  uint64_t elements = 0;
  uint64_t encoded_bytes = 0;
  PluginRate encode;
  PluginRate decode;
  PluginRate copy;
};

// All that the child has said of a codec.
struct CodecReport : CodecDescription {
  std::vector<PluginCheck> checks;  // all of them, in their order
  std::optional<CodecSpeed> speed;  // none if a check failed, or without memory for it

  bool ok() const { return AllPassed(checks); }
};

// Loads the object `path` in a child process, which must call RunCodecCheckChild (check_child.h),
// and runs all checks. A codec that fails one is no error: see the report. Errors begin with the
// path: those of LoadCodecPlugin; InvalidArgument if the object ends the process, or hangs, while
// it is loaded; Internal if no child can be started. Thread-safe.
absl::StatusOr<CodecReport> CheckCodec(const std::string& path, const PluginCheckOptions& options);

// The same without the checks: returns what the object says of itself.
absl::StatusOr<CodecReport> DescribeCodec(const std::string& path,
                                          const PluginCheckOptions& options);

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_CHECK_CODEC_CHECK_H_
