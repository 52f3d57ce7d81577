#include "cli/launch/run_config.h"

#include <cstring>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folders.h"
#include "cli/launch/quickstart_yaml.h"

extern char** environ;

namespace eps {
absl::StatusOr<RunConfig> ResolveConfig(const CommandLine& line,
                                        const std::map<std::string, std::string>& environment) {
  // The layers above the file determine which file to read.
  Config above;
  if (line.trains && line.config_file.empty()) {
    EPS_RETURN_IF_ERROR(above.MergeYaml(kQuickstartYaml, "the quickstart settings"));
  }
  EPS_RETURN_IF_ERROR(above.MergeEnvironment(environment));
  EPS_RETURN_IF_ERROR(above.MergeFlags(line.settings));

  RunConfig run;
  run.overwrite = line.overwrite;
  run.allow_changes = line.allow_changes;
  run.driver_lease = line.driver_lease;
  std::string yaml;
  if (!line.config_file.empty()) {
    run.origin = line.config_file;
    EPS_ASSIGN_OR_RETURN(yaml, ReadTextFile(line.config_file));
  } else if (line.trains && above.model.path.empty()) {
    EPS_ASSIGN_OR_RETURN(const std::string folder, ResumeFolder(above.checkpoint));
    if (!folder.empty()) {
      run.origin = absl::StrCat(folder, "/", kConfigFile);
      EPS_ASSIGN_OR_RETURN(yaml, ReadTextFile(run.origin));
    } else {
      run.origin = "the quickstart settings";
      run.quickstart = true;
      yaml = kQuickstartYaml;
    }
  }
  EPS_RETURN_IF_ERROR(run.config.MergeYaml(yaml, run.origin));
  EPS_RETURN_IF_ERROR(run.config.MergeEnvironment(environment));
  EPS_RETURN_IF_ERROR(run.config.MergeFlags(line.settings));
  return run;
}

std::map<std::string, std::string> ProcessEnvironment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* const equals = std::strchr(*entry, '=');
    if (equals == nullptr) continue;
    variables.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
  }
  return variables;
}

std::vector<std::string> EnvironmentWithoutConfig() {
  static const std::set<std::string> kLauncher = {
      "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  std::vector<std::string> variables;
  for (const auto& [name, value] : ProcessEnvironment()) {
    const bool config =
        name == "EPS_SERVERS" || (absl::StartsWith(name, "EPS_") && absl::StrContains(name, "__"));
    if (!config && kLauncher.count(name) == 0) variables.push_back(absl::StrCat(name, "=", value));
  }
  return variables;
}

std::string ConfigReference() {
  std::string page =
      "# Configuration keys\n\n"
      "`eps config reference` prints this page; a test compares the two. Precedence:\n"
      "`--section.key=value` on the command line, then `EPS_SECTION__KEY` in the environment,\n"
      "then the YAML file of `--config`, then the default. `eps config print` shows the resolved\n"
      "configuration of a command line.\n"
      "An unknown key is an error (exit code 64) that names the nearest known one.\n\n"
      "Short forms: `--data` data.path, `--model` model.path, `--out` checkpoint.dir, `--resume`\n"
      "checkpoint.resume, `--servers` servers.addresses (also `EPS_SERVERS`), `--workers`\n"
      "worker.count, `--listen` servers.listen, `--insecure` servers.insecure.\n\n"
      "A size is written `16GiB`, `500MB` or in bytes; a duration `500ms`, `30s`, `5m`, `1h`; a "
      "list\n"
      "`[a, b]` or `a,b`.\n\n"
      "| key | type | default | meaning |\n| --- | --- | --- | --- |\n";
  for (const ConfigKey& key : ConfigKeys()) {
    absl::StrAppend(&page, "| `", key.name, "` | ", key.type, " | `", key.default_value, "` | ",
                    absl::StrReplaceAll(key.help, {{"|", "\\|"}}), " |\n");
  }
  return page;
}

}  // namespace eps
