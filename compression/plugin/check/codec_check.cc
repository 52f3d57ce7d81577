#include "compression/plugin/check/codec_check.h"

#include "base/plugin/check/check_process.h"
#include "compression/plugin/check/codec_lines.h"

namespace eps {

absl::StatusOr<CodecReport> CheckCodec(const std::string& path, const PluginCheckOptions& options) {
  return ReportOf<CodecLineReader>(path, "check", options);
}

absl::StatusOr<CodecReport> DescribeCodec(const std::string& path,
                                          const PluginCheckOptions& options) {
  return ReportOf<CodecLineReader>(path, "describe", options);
}

}  // namespace eps
