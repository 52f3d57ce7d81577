#include "optimizer/plugin/check/check_child.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/plugin/check/check_child.h"
#include "base/status_macros.h"
#include "optimizer/plugin/check/checks.h"
#include "optimizer/plugin/check/report_lines.h"
#include "optimizer/plugin/check/speed.h"
#include "optimizer/plugin/updater_plugin.h"

namespace eps {
namespace {

// In the order of PluginCheckNames().
constexpr std::string (*kChecks[])(CheckTools* tools) = {
    CheckBounds, CheckSplits, CheckAlignment, CheckThreads, CheckValues, CheckParameters, CheckMode,
};

// An updater that is checked.
class UpdaterSubject final : public CheckSubject {
 public:
  absl::Status Load(const std::string& path) override {
    EPS_ASSIGN_OR_RETURN(plugin_, LoadUpdaterPlugin(path));
    return absl::OkStatus();
  }

  absl::Status Prepare(uint64_t speed_elements) override {
    EPS_ASSIGN_OR_RETURN(tools_, CheckTools::New(plugin_));
    speed_ = SpeedTrial::New(plugin_, speed_elements);
    return absl::OkStatus();
  }

  void Describe() override {
    WriteReportLine(absl::StrCat("sha256 ", plugin_->sha256));
    WriteReportLine(absl::StrCat("name ", plugin_->name));
    for (const std::string& field : plugin_->fields) WriteReportLine(absl::StrCat("field ", field));
    for (const PluginParameter& p : plugin_->parameters) {
      WriteReportLine(
          absl::StrFormat("parameter %s %.17g %.17g %.17g", p.name, p.usual, p.least, p.most));
    }
  }

  std::string Check(size_t index) override { return kChecks[index](&tools_); }

  void Measure() override {
    if (speed_ != nullptr) speed_->RunAndReport();
  }

 private:
  const UpdaterPlugin* plugin_ = nullptr;
  CheckTools tools_;
  std::unique_ptr<SpeedTrial> speed_;
};

}  // namespace

void RunPluginCheckChild(const std::vector<std::string>& arguments) {
  RunCheckChild(PluginCheckNames(), new UpdaterSubject, arguments);
}

}  // namespace eps
