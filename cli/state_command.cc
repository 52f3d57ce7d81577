#include "cli/state_command.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/checkpoint_folders.h"
#include "cli/job_state.h"
#include "cli/progress.h"
#include "cli/state_folder.h"
#include "common/status_macros.h"
#include "eps_server/core/recovery.h"

namespace eps {
namespace {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<std::optional<JobId>> ChosenJob(const std::string& text) {
  if (text.empty()) return std::optional<JobId>();
  uint64_t id = 0;
  if (absl::SimpleHexAtoi(text, &id)) return std::optional<JobId>(JobId(id));
  return absl::InvalidArgumentError(
      absl::StrCat("--job: expected up to 16 hexadecimal digits, found \"", text, "\""));
}

std::string Show(const JobState& state) {
  const JobStateHead& head = state.head();
  return absl::StrFormat("job %016x, %s, %s parameters", head.spec.id().value(),
                         CutName(head.border.id), FormatCount(head.spec.total_elements()));
}

std::string Show(const StatePlan& plan) {
  std::string text;
  for (const StatePlan::Server& server : plan.servers) {
    absl::StrAppend(&text, "  ", server.folder, ": ", FormatCount(server.chunks), " chunks, ",
                    FormatBytes(static_cast<double>(server.bytes)), "\n");
  }
  absl::StrAppend(&text, "  ", FormatCount(plan.bytes), " bytes, and ",
                  FormatCount(plan.free_bytes), " are free there\n");
  return text;
}

absl::Status Write(const JobState& state, uint32_t servers, const StateArguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const StatePlan plan, PlanStateFolder(state, servers, arguments.out));
  Print(absl::StrCat(arguments.dry_run ? "would write: " : "state: ", Show(state), ", ", servers,
                     servers == 1 ? " server\n" : " servers\n", Show(plan)));
  if (arguments.dry_run) return CheckFits(plan, arguments.out);
  EPS_RETURN_IF_ERROR(WriteStateFolder(state, servers, arguments.out));
  const std::string config = JobConfigFile(arguments.out, state.head().spec.id());
  std::error_code error;
  Print(
      absl::StrCat("next:\n  eps train ",
                   std::filesystem::exists(config, error)
                       ? absl::StrCat("--config=", config)
                       : absl::StrCat("... --storage.path=", arguments.out, " --servers=", servers),
                   " --resume=latest\n"));
  return absl::OkStatus();
}

// A checkpoint, or the one that --resume=latest would take of a folder of them.
absl::StatusOr<std::string> ChosenCheckpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(path, "/", kManifestFile), error)) return path;
  EPS_ASSIGN_OR_RETURN(const std::string latest, LatestCheckpoint(path));
  if (!latest.empty()) return latest;
  return absl::NotFoundError(absl::StrCat(path, " is no complete checkpoint and holds none"));
}

absl::Status Parse(CLI::App* app, const char* command, const std::vector<std::string>& arguments,
                   bool* helped) {
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants it
    app->parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    *helped = true;
    Print(app->help());
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, ": ", error.what(), " (eps ", command, " --help)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveState(const StateArguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const std::optional<JobId> job, ChosenJob(arguments.job));
  EPS_ASSIGN_OR_RETURN(const auto folder, StateFolder::Open(arguments.from));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, folder->OpenCut(job));
  if (state->head().config.empty()) {
    Print(absl::StrCat("note: ", JobConfigFile(arguments.from, state->head().spec.id()),
                       " is not there: a resume needs --config or --model\n"));
  }
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, SaveCheckpoint(*state, arguments.out));
  Print(absl::StrCat("checkpoint: ", checkpoint, ": ", Show(*state), "\n"));
  return absl::OkStatus();
}

absl::Status ReshardState(const StateArguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const std::optional<JobId> job, ChosenJob(arguments.job));
  EPS_ASSIGN_OR_RETURN(const auto folder, StateFolder::Open(arguments.from));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, folder->OpenCut(job));
  return Write(*state, arguments.servers, arguments);
}

absl::Status RestoreState(const StateArguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, ChosenCheckpoint(arguments.from));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, OpenCheckpointState(checkpoint));
  Print(absl::StrCat("verified: ", checkpoint, "\n"));
  if (!state->note().empty()) Print(absl::StrCat("note: ", state->note(), "\n"));
  const uint32_t servers = arguments.servers != 0 ? arguments.servers : state->head().servers;
  if (servers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint, " does not say of how many servers it was made: give --servers"));
  }
  return Write(*state, servers, arguments);
}

absl::Status RunBackupCommand(const std::vector<std::string>& arguments) {
  CLI::App app{"Writes the durable state of a job as a checkpoint; no server may run.",
               "eps backup"};
  StateArguments given;
  app.add_option("STATE", given.from, "folder of the servers' data (storage.path)")->required();
  app.add_option("--out", given.out, "folder in which checkpoint-<step> is written")->required();
  app.add_option("--job", given.job, "id of the job, if there are several");
  bool helped = false;
  EPS_RETURN_IF_ERROR(Parse(&app, "backup", arguments, &helped));
  return helped ? absl::OkStatus() : SaveState(given);
}

absl::Status RunRestoreCommand(const std::vector<std::string>& arguments) {
  CLI::App app{"Makes durable state of a backup or of any other checkpoint.", "eps restore"};
  StateArguments given;
  app.add_option("BACKUP", given.from, "a checkpoint, or a folder whose latest is taken")
      ->required();
  app.add_option("--out", given.out, "the new folder of the servers' data")->required();
  app.add_option("--servers", given.servers, "their number (default: as in the backup)");
  app.add_flag("--dry-run", given.dry_run, "check everything, write nothing");
  bool helped = false;
  EPS_RETURN_IF_ERROR(Parse(&app, "restore", arguments, &helped));
  return helped ? absl::OkStatus() : RestoreState(given);
}

}  // namespace eps
