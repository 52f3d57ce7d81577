#include "cli/commands/plugin/plugin_command.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"
#include "cli/launch/plugin/chosen_plugin.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// Creates the folder, or accepts an empty one.
absl::Status PrepareFolder(const std::string& out) {
  std::error_code error;
  if (fs::is_directory(out, error) && !fs::is_empty(out, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat("--out=", out, ": the folder is not empty; name a new one"));
  }
  return CreateFolder(out);
}

std::string ReplaceWord(const std::string& text, const std::string& word,
                        const std::string& other) {
  const auto in_word = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  std::string replaced;
  for (size_t at = 0;;) {
    const size_t found = text.find(word, at);
    replaced.append(text, at, found == std::string::npos ? found : found - at);
    if (found == std::string::npos) return replaced;
    at = found + word.size();
    const bool whole =
        (found == 0 || !in_word(text[found - 1])) && (at == text.size() || !in_word(text[at]));
    replaced += whole ? other : word;
  }
}

const char* TextOf(PluginCheck::Outcome outcome) {
  switch (outcome) {
    case PluginCheck::Outcome::kPassed:
      return "ok";
    case PluginCheck::Outcome::kFailed:
      return "failed";
    case PluginCheck::Outcome::kNotRun:
      return "not run";
  }
  return "?";
}

}  // namespace

PluginCheckOptions ChildOfCommand(const std::string& command, double deadline_seconds) {
  PluginCheckOptions options = ChildOfEps(command);
  options.deadline = std::chrono::milliseconds(static_cast<int64_t>(deadline_seconds * 1000));
  return options;
}

absl::Status WriteNewPlugin(const std::string& name, const std::string& out,
                            const std::string& template_name,
                            const std::vector<std::pair<std::string, const char*>>& files) {
  if (!IsPluginName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected 1 to 63 of a-z, 0-9 and _, beginning with a letter"));
  }
  EPS_RETURN_IF_ERROR(PrepareFolder(out));
  for (const auto& [file, text] : files) {
    EPS_RETURN_IF_ERROR(
        WriteSynced(absl::StrCat(out, "/", file), ReplaceWord(text, template_name, name)));
  }
  return absl::OkStatus();
}

std::string ChecksText(const std::vector<PluginCheck>& checks) {
  std::string text;
  for (const PluginCheck& check : checks) {
    absl::StrAppendFormat(&text, "%-11s %s%s%s\n", check.name, TextOf(check.outcome),
                          check.finding.empty() ? "" : ": ", check.finding);
  }
  return text;
}

nlohmann::ordered_json ChecksJson(const std::vector<PluginCheck>& checks) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const PluginCheck& check : checks) {
    array.push_back(
        {{"name", check.name}, {"outcome", TextOf(check.outcome)}, {"finding", check.finding}});
  }
  return array;
}

std::string RateText(const PluginRate& gigabytes_per_second) {
  return absl::StrFormat("%.2f GB/s (%.2f to %.2f)", gigabytes_per_second.median,
                         gigabytes_per_second.least, gigabytes_per_second.most);
}

nlohmann::ordered_json RateJson(const PluginRate& rate) {
  return {{"least", rate.least}, {"median", rate.median}, {"most", rate.most}};
}

absl::Status StatusOfChecks(const std::string& path, const std::string& plugin,
                            const std::vector<PluginCheck>& checks) {
  for (const PluginCheck& check : checks) {
    if (check.outcome != PluginCheck::Outcome::kFailed) continue;
    return WithExitCode(absl::FailedPreconditionError(absl::StrCat(
                            path, ": ", plugin, " fails check ", check.name, ": ", check.finding)),
                        ExitCode::kDifferent);
  }
  if (AllPassed(checks)) return absl::OkStatus();
  return absl::InternalError("a report without a finding is not ok");
}

}  // namespace eps
