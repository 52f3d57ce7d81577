#include "cli/launch/service/submitted_config.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "wire/job_terms.h"
#include "yaml-cpp/yaml.h"

namespace eps {
namespace {

constexpr std::array<absl::string_view, 10> kSections = {
    "model",     "lora",         "data",         "training",   "eval",
    "optimizer", "lr_scheduler", "quantization", "checkpoint", "metrics"};
constexpr std::array<absl::string_view, 3> kMachineSections = {"servers", "storage", "worker"};

std::string Normalized(const YAML::Node& key) {
  return absl::StrReplaceAll(key.Scalar(), {{"-", "_"}});
}

absl::Status Refuse(absl::string_view origin, const YAML::Node& key, absl::string_view name,
                    absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(origin, ":", key.Mark().line + 1, ": ", name, ": ",
                                                 why, "; a submitted job sets only keys of ",
                                                 absl::StrJoin(kSections, ", ")));
}

// Checks one key with a value; `name` is "section.key", or a short form, which belongs to a section
// that is allowed.
absl::Status CheckName(absl::string_view origin, const YAML::Node& key, absl::string_view name) {
  const absl::string_view section = name.substr(0, name.find('.'));
  if (std::find(kMachineSections.begin(), kMachineSections.end(), section) !=
      kMachineSections.end()) {
    return Refuse(origin, key, name, "who runs the servers and workers decides this");
  }
  if (section == "checkpoint" && name.substr(section.size()) == ".dir") {
    return Refuse(origin, key, name, "the driver writes each job into a folder of its own");
  }
  if (section == "checkpoint" && absl::StartsWith(name.substr(section.size()), ".on_saved")) {
    return Refuse(origin, key, name,
                  "who runs the driver decides which commands it runs (eps driver --on-saved)");
  }
  if (name.substr(section.size()) == ".plugin") {
    return Refuse(
        origin, key, name,
        absl::StrCat("who runs the driver decides which code it loads (eps driver --", name, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(absl::string_view origin, const YAML::Node& root) {
  if (!root.IsMap()) return absl::OkStatus();
  for (const auto& entry : root) {
    const std::string name = Normalized(entry.first);
    EPS_RETURN_IF_ERROR(CheckName(origin, entry.first, name));
    if (!entry.second.IsMap()) continue;
    for (const auto& key : entry.second) {
      EPS_RETURN_IF_ERROR(
          CheckName(origin, key.first, absl::StrCat(name, ".", Normalized(key.first))));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Config> ReadSubmittedConfig(const std::string& yaml, const std::string& origin) {
  if (yaml.size() > kMaxJobConfigBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        origin, ": ", yaml.size(), " bytes; a submitted job has at most ", kMaxJobConfigBytes));
  }
  Config config;
  EPS_RETURN_IF_ERROR(config.MergeYaml(yaml, origin));
  // It is valid YAML with plain keys.
  EPS_RETURN_IF_ERROR(CheckNames(origin, YAML::Load(yaml)));
  return config;
}

}  // namespace eps
