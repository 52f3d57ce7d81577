#include "optimizer/plugin/plugin_parameters.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace eps {
namespace {

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer.plugin_parameters: ", parts...));
}

bool IsIn(double value, const PluginParameter& range) {
  return range.least <= value && value <= range.most;
}

absl::StatusOr<size_t> FindParameter(const PluginDescription& plugin, absl::string_view name) {
  std::vector<std::string> names;
  for (const PluginParameter& parameter : plugin.parameters) {
    if (parameter.name == name) return names.size();
    names.push_back(parameter.name);
  }
  return Invalid(plugin.name, " has no parameter \"", name, "\"; it has ",
                 names.empty() ? "none" : absl::StrJoin(names, ", "));
}

}  // namespace

absl::StatusOr<PluginSpec> ChooseParameters(const PluginDescription& plugin,
                                            absl::string_view text) {
  PluginSpec spec = {plugin.name, plugin.sha256, plugin.fields, {}};
  for (const PluginParameter& parameter : plugin.parameters) {
    spec.parameters.emplace_back(parameter.name, parameter.usual);
  }
  std::set<size_t> chosen;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" ,"), absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    EPS_ASSIGN_OR_RETURN(const size_t index, FindParameter(plugin, parts.first));
    const PluginParameter& parameter = plugin.parameters[index];
    double& value = spec.parameters[index].second;
    if (!absl::SimpleAtod(parts.second, &value) || !IsIn(value, parameter)) {
      return Invalid(parameter.name, ": expected a number from ", parameter.least, " to ",
                     parameter.most, ", found \"", parts.second, "\"");
    }
    if (!chosen.insert(index).second) return Invalid(parameter.name, " is set twice");
  }
  return spec;
}

absl::Status CheckDescribes(const PluginSpec& spec, const UpdaterPlugin& plugin) {
  bool equal = spec.sha256 == plugin.sha256 && spec.name == plugin.name &&
               spec.fields == plugin.fields && spec.parameters.size() == plugin.parameters.size();
  for (size_t i = 0; equal && i < spec.parameters.size(); ++i) {
    equal = spec.parameters[i].first == plugin.parameters[i].name &&
            IsIn(spec.parameters[i].second, plugin.parameters[i]);
  }
  if (equal) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("optimizer.plugin: the job's text does not describe the updater ", plugin.name,
                   " (", plugin.path, "): expected its name, its SHA-256, its state fields ",
                   absl::StrJoin(plugin.fields, ", "), " and all its ", plugin.parameters.size(),
                   " parameters in their ranges"));
}

}  // namespace eps
