#ifndef EPS_COMPRESSION_PLUGIN_CHECK_CODEC_LINES_H_
#define EPS_COMPRESSION_PLUGIN_CHECK_CODEC_LINES_H_

// The lines of base/plugin/check/report_lines.h for a codec. Its own line of the description is the
// codec's complete name (CodecNameOf):
//
//   codec plugin:NAME:SHA256:HEAD_BYTES:BYTES_PER_1024[:feedback]
//
// The BYTES of `speed` are those of all encoded elements, and a round times encode, decode and the
// loop that copies.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/plugin/check/report_lines.h"
#include "compression/plugin/check/codec_check.h"

namespace eps {

// The names of all checks, in their order.
const std::vector<std::string>& CodecCheckNames();

// Reads the lines of a child that checks a codec. Thread-compatible.
class CodecLineReader final : public ReportLineReader {
 public:
  CodecLineReader();

  // Ends the report as ReportLineReader::End does, and returns it.
  absl::StatusOr<CodecReport> Finish(absl::string_view end, absl::string_view reason);

 private:
  bool TakeFact(absl::string_view word, absl::string_view rest) override;

  CodecReport report_;  // its description, until the end
};

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_CHECK_CODEC_LINES_H_
