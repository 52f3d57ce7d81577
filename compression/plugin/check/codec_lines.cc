#include "compression/plugin/check/codec_lines.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"
#include "compression/plugin/codec_plugin.h"

namespace eps {
namespace {

// The loops of a round.
enum Loop : size_t { kEncode, kDecode, kCopy, kLoops };

}  // namespace

const std::vector<std::string>& CodecCheckNames() {
  static const auto* const names =
      new std::vector<std::string>{"bounds", "size",     "round_trip", "alignment", "threads",
                                   "values", "feedback", "hostile",    "mode"};
  return *names;
}

CodecLineReader::CodecLineReader() : ReportLineReader(CodecCheckNames(), kLoops) {}

bool CodecLineReader::TakeFact(absl::string_view word, absl::string_view rest) {
  const std::vector<std::string> pieces = absl::StrSplit(rest, ':');
  if (word != "codec" || pieces[0] != kPluginCodec) return false;
  // The child has checked the description already, but the plug-in may have written this line
  // itself.
  const auto codec = ParseCodecName({pieces.begin() + 1, pieces.end()});
  if (!codec.ok() || codec->name != name() || codec->sha256 != sha256()) return false;
  static_cast<CodecDescription&>(report_) = *codec;
  return true;
}

absl::StatusOr<CodecReport> CodecLineReader::Finish(absl::string_view end,
                                                    absl::string_view reason) {
  EPS_RETURN_IF_ERROR(End(end, reason));
  if (report_.name != name() || report_.sha256 != sha256()) {
    return absl::InvalidArgumentError("the checks' process wrote no complete description");
  }
  report_.checks = checks();
  if (rounds().has_value()) {
    const TimedRounds& r = *rounds();
    const double bytes = static_cast<double>(r.elements) * sizeof(float);
    report_.speed = CodecSpeed{r.elements, r.bytes, r.Speed(kEncode, bytes),
                               r.Speed(kDecode, bytes), r.Speed(kCopy, bytes)};
  }
  return report_;
}

}  // namespace eps
