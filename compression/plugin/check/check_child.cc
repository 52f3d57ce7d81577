#include "compression/plugin/check/check_child.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/plugin/check/check_child.h"
#include "base/plugin/check/report_lines.h"
#include "base/status_macros.h"
#include "compression/plugin/check/checks.h"
#include "compression/plugin/check/codec_lines.h"
#include "compression/plugin/check/codec_speed.h"
#include "compression/plugin/codec_plugin.h"

namespace eps {
namespace {

// In the order of CodecCheckNames().
constexpr std::string (*kChecks[])(CodecTools* tools) = {
    CheckCodecBounds, CheckCodecSize, CheckRoundTrip,    CheckCodecAlignment, CheckCodecThreads,
    CheckCodecValues, CheckFeedback,  CheckHostileBytes, CheckCodecMode,
};

// A codec that is checked.
class CodecSubject final : public CheckSubject {
 public:
  absl::Status Load(const std::string& path) override {
    EPS_ASSIGN_OR_RETURN(plugin_, LoadCodecPlugin(path));
    return absl::OkStatus();
  }

  absl::Status Prepare(uint64_t speed_elements) override {
    EPS_ASSIGN_OR_RETURN(tools_, CodecTools::New(plugin_));
    speed_ = CodecSpeedTrial::New(plugin_, speed_elements);
    return absl::OkStatus();
  }

  void Describe() override {
    WriteReportLine(absl::StrCat("sha256 ", plugin_->sha256));
    WriteReportLine(absl::StrCat("name ", plugin_->name));
    WriteReportLine(absl::StrCat("codec ", CodecNameOf(*plugin_)));
  }

  std::string Check(size_t index) override { return kChecks[index](&tools_); }

  void Measure() override {
    if (speed_ != nullptr) speed_->RunAndReport();
  }

 private:
  const CodecPlugin* plugin_ = nullptr;
  CodecTools tools_;
  std::unique_ptr<CodecSpeedTrial> speed_;
};

}  // namespace

void RunCodecCheckChild(const std::vector<std::string>& arguments) {
  RunCheckChild(CodecCheckNames(), new CodecSubject, arguments);
}

}  // namespace eps
