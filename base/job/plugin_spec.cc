#include "base/job/plugin_spec.h"

#include <cmath>
#include <set>

#include "absl/strings/escaping.h"
#include "base/job/key_rules.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr char kLine[] = "optimizer.plugin";

absl::Status CheckNames(absl::string_view of, const std::vector<std::string>& names, size_t most) {
  if (names.size() > most) {
    return Refuse(kLine, "expected at most ", most, " ", of, "s, found ", names.size());
  }
  std::set<absl::string_view> seen;
  for (const std::string& name : names) {
    if (!IsPluginName(name)) {
      return Refuse(kLine, "expected the name of a ", of,
                    ", 1 to 63 of a-z, 0-9 and _ beginning with a letter, found \"",
                    absl::CHexEscape(name), "\"");
    }
    if (!seen.insert(name).second) return Refuse(kLine, "two ", of, "s are called ", name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidatePlugin(const PluginSpec& plugin) {
  EPS_RETURN_IF_ERROR(CheckNames("plug-in", {plugin.name}, 1));
  if (!IsSha256(plugin.sha256)) {
    return Refuse(kLine, "expected a SHA-256 digest, 64 digits of lower-case hexadecimal, found ",
                  plugin.sha256.size(), " characters");
  }
  EPS_RETURN_IF_ERROR(CheckNames("state field", plugin.fields, kMaxStateFields));
  std::vector<std::string> names;
  for (const auto& [name, value] : plugin.parameters) {
    names.push_back(name);
    if (!std::isfinite(value)) return Refuse(kLine, name, ": expected a finite number");
  }
  return CheckNames("parameter", names, kMaxPluginParameters);
}

}  // namespace eps
