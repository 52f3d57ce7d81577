#include "cli/launch/run_config.h"

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/checkpoint_folders.h"
#include "base/files/files.h"
#include "cli/quickstart_yaml.h"
#include "base/status_macros.h"

extern char** environ;

namespace eps {
namespace {

absl::Status ApplyFlags(const CommandLine& line, Config* config) {
  for (const auto& [key, value] : line.settings) {
    const absl::Status status = config->Set(key, value);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", key, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ResumeFolder(const CheckpointConfig& checkpoint) {
  if (checkpoint.resume == "none" || checkpoint.resume.empty()) return std::string();
  const std::string& folder = checkpoint.resume;
  if (folder == "latest") {
    if (checkpoint.dir.empty()) {
      return absl::InvalidArgumentError(
          "checkpoint.resume: latest needs checkpoint.dir (--out), where the checkpoints are");
    }
    absl::StatusOr<std::string> latest = LatestCheckpoint(checkpoint.dir);
    if (latest.ok()) return latest;
    return absl::Status(latest.status().code(),
                        absl::StrCat("checkpoint.resume: latest: ", latest.status().message()));
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(absl::StrCat(folder, "/", kManifestFile), error)) {
    return absl::NotFoundError(absl::StrCat(
        "checkpoint.resume: ", folder, " has no eps/manifest.json: not a complete checkpoint"));
  }
  return folder;
}

absl::StatusOr<RunConfig> ResolveConfig(const CommandLine& line,
                                        const std::map<std::string, std::string>& environment) {
  // What the layers above the file say decides which file it is.
  const bool train = line.command == Command::kTrain || line.command == Command::kConfigPrint;
  Config above;
  if (train && line.config_file.empty()) {
    EPS_RETURN_IF_ERROR(above.MergeYaml(kQuickstartYaml, "the quickstart settings"));
  }
  EPS_RETURN_IF_ERROR(above.MergeEnvironment(environment));
  EPS_RETURN_IF_ERROR(ApplyFlags(line, &above));

  RunConfig run;
  std::string yaml;
  if (!line.config_file.empty()) {
    run.origin = line.config_file;
    EPS_ASSIGN_OR_RETURN(yaml, ReadTextFile(line.config_file));
  } else if (train && above.model.path.empty()) {
    EPS_ASSIGN_OR_RETURN(const std::string folder, ResumeFolder(above.checkpoint));
    if (!folder.empty()) {
      run.origin = absl::StrCat(folder, "/eps/config.yaml");
      EPS_ASSIGN_OR_RETURN(yaml, ReadTextFile(run.origin));
    } else {
      run.origin = "the quickstart settings";
      run.quickstart = true;
      yaml = kQuickstartYaml;
    }
  }
  EPS_RETURN_IF_ERROR(run.config.MergeYaml(yaml, run.origin));
  EPS_RETURN_IF_ERROR(run.config.MergeEnvironment(environment));
  EPS_RETURN_IF_ERROR(ApplyFlags(line, &run.config));
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

std::string ConfigReference() {
  std::string page =
      "# Configuration keys\n\n"
      "Printed by `eps config reference`; a test compares. Precedence: `--section.key=value` on\n"
      "the command line, then `EPS_SECTION__KEY` in the environment, then the YAML file of\n"
      "`--config`, then the default. `eps config print` shows what a command line resolves to.\n"
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
