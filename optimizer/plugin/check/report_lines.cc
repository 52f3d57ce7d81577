#include "optimizer/plugin/check/report_lines.h"

#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"
#include "optimizer/plugin/eps_updater.h"

namespace eps {
namespace {

// The loops of a round.
enum Loop : size_t { kUpdate, kPlain, kLoops };

}  // namespace

const std::vector<std::string>& PluginCheckNames() {
  static const auto* const names = new std::vector<std::string>{
      "bounds", "splits", "alignment", "threads", "values", "parameters", "mode"};
  return *names;
}

ReportReader::ReportReader() : ReportLineReader(PluginCheckNames(), kLoops) {}

bool ReportReader::TakeFact(absl::string_view word, absl::string_view rest) {
  const absl::string_view name = TakeWord(&rest);
  // The child has checked names already, but the plug-in may have written this line itself.
  if (!IsPluginName(name)) return false;
  if (word == "field" && report_.fields.size() < EPS_UPDATER_MAX_FIELDS) {
    report_.fields.emplace_back(name);
    return true;
  }
  PluginParameter parameter;
  parameter.name = std::string(name);
  if (word != "parameter" || report_.parameters.size() >= EPS_UPDATER_MAX_PARAMETERS ||
      !absl::SimpleAtod(TakeWord(&rest), &parameter.usual) ||
      !absl::SimpleAtod(TakeWord(&rest), &parameter.least) ||
      !absl::SimpleAtod(TakeWord(&rest), &parameter.most)) {
    return false;
  }
  report_.parameters.push_back(std::move(parameter));
  return true;
}

absl::StatusOr<PluginReport> ReportReader::Finish(absl::string_view end, absl::string_view reason) {
  EPS_RETURN_IF_ERROR(End(end, reason));
  report_.sha256 = sha256();
  report_.name = name();
  report_.checks = checks();
  if (rounds().has_value()) {
    const TimedRounds& r = *rounds();
    const double bytes = static_cast<double>(r.elements) * static_cast<double>(r.bytes);
    report_.speed = PluginSpeed{r.elements, r.bytes, r.Speed(kUpdate, bytes),
                                r.Speed(kPlain, bytes), r.Ratio(kUpdate, kPlain)};
  }
  return report_;
}

}  // namespace eps
