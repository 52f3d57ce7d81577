#include "cli/commands/state.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/config/app_arguments.h"
#include "base/config/config.h"
#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/backup/backup_file.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/guard/folder_lock.h"
#include "checkpoint/job_state.h"
#include "checkpoint/state_folder.h"
#include "cli/driver/save/running_save.h"
#include "cli/launch/interrupt.h"
#include "cli/launch/plan.h"
#include "cli/launch/security/security_flags.h"
#include "storage/cuts/common_cut.h"

namespace eps {
namespace {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<JobId> ParseJob(absl::string_view argument, const std::string& text) {
  uint64_t id = 0;
  if (absl::SimpleHexAtoi(text, &id)) return JobId(id);
  return absl::InvalidArgumentError(
      absl::StrCat(argument, ": expected up to 16 hexadecimal digits, found \"", text, "\""));
}

absl::StatusOr<std::optional<JobId>> ChosenJob(const std::string& text) {
  if (text.empty()) return std::optional<JobId>();
  EPS_ASSIGN_OR_RETURN(const JobId job, ParseJob("--job", text));
  return std::optional<JobId>(job);
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
  absl::StrAppend(&text, "  ", FormatCount(plan.bytes), " bytes; ", FormatCount(plan.free_bytes),
                  " bytes are free there\n");
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

// Returns `path` if it is a checkpoint, else the checkpoint in it that --resume=latest would use.
absl::StatusOr<std::string> ChosenCheckpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(path, "/", kManifestFile), error)) return path;
  EPS_ASSIGN_OR_RETURN(const std::string latest, LatestCheckpoint(path));
  if (!latest.empty()) return latest;
  return absl::NotFoundError(absl::StrCat(path, " is not a complete checkpoint and contains none"));
}

absl::Status Restore(const JobState& state, const std::string& from,
                     const StateArguments& arguments) {
  Print(absl::StrCat("verified: ", from, "\n"));
  if (!state.note().empty()) Print(absl::StrCat("note: ", state.note(), "\n"));
  const uint32_t servers = arguments.servers != 0 ? arguments.servers : state.head().servers;
  if (servers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, " does not record the number of servers: give --servers"));
  }
  return Write(state, servers, arguments);
}

// Unpacks the backup into a temporary checkpoint next to the new folder.
absl::Status RestoreBackupFile(const StateArguments& arguments) {
  const std::string& from = arguments.from;
  EPS_RETURN_IF_ERROR(CheckIsNew(arguments.out));
  if (arguments.dry_run) {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, CheckBackupFile(from));
    return Restore(*state, from, arguments);
  }
  const OutPath out = LocateOut(arguments.out);
  const ScratchFolder unpacked = {absl::StrCat(out.hidden, ".unpacked")};
  EPS_RETURN_IF_ERROR(unpacked.MakeEmpty());
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, UnpackBackupFile(from, unpacked.path));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, OpenCheckpointState(checkpoint));
  return Restore(*state, from, arguments);
}

// Returns true if an argument of `eps state rm` is a path in lost+found; otherwise it is an id.
bool IsPath(const std::string& argument) { return absl::StrContains(argument, '/'); }

// Removes each job completely before it begins with the next one.
absl::Status RemoveAll(StateFolder* folder, const std::vector<std::string>& arguments,
                       RemoveServed served) {
  for (const std::string& argument : arguments) {
    if (IsPath(argument)) {
      EPS_ASSIGN_OR_RETURN(const uint64_t bytes, folder->RemoveLost(argument));
      Print(absl::StrCat("removed: ", argument, ", ", FormatCount(bytes), " bytes\n"));
      continue;
    }
    EPS_ASSIGN_OR_RETURN(const JobId job, ParseJob("JOB", argument));
    EPS_ASSIGN_OR_RETURN(const uint64_t bytes, folder->Remove(job, served));
    Print(absl::StrFormat("removed: job %016x, %s bytes\n", job.value(), FormatCount(bytes)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveState(const StateArguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const std::optional<JobId> job, ChosenJob(arguments.job));
  EPS_ASSIGN_OR_RETURN(const auto folder, StateFolder::Open(arguments.from));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, folder->OpenCut(job));
  if (state->head().config.empty()) {
    std::fprintf(stderr, "note: %s is missing: a resume needs --config or --model\n",
                 JobConfigFile(arguments.from, state->head().spec.id()).c_str());
  }
  if (NamesBackupFile(arguments.out)) {
    EPS_ASSIGN_OR_RETURN(const uint64_t bytes, WriteBackupFile(*state, arguments.out));
    const std::string said = absl::StrCat("backup: ", arguments.out, ": ", Show(*state), ", ",
                                          FormatBytes(static_cast<double>(bytes)), "\n");
    std::fputs(said.c_str(), arguments.out == "-" ? stderr : stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const Descriptor lock, LockFolder(arguments.out));
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, SaveCheckpoint(*state, arguments.out));
  Print(absl::StrCat("checkpoint: ", checkpoint, ": ", Show(*state), "\n"));
  return absl::OkStatus();
}

absl::Status SaveRunning(const StateArguments& arguments) {
  ServersConfig servers;
  servers.addresses = arguments.addresses;
  EPS_ASSIGN_OR_RETURN(const ServerChoice choice, ChooseServers(servers));
  if (choice.attach.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--servers: expected the address of a running server (host:port), found \"",
                     arguments.addresses, "\""));
  }
  EPS_RETURN_IF_ERROR(UseSecurity(arguments.security));
  RunningSave save;
  save.server = choice.attach[0];
  EPS_ASSIGN_OR_RETURN(save.job, ChosenJob(arguments.job));
  save.root = arguments.out;
  save.patience = std::chrono::seconds(arguments.patience);
  save.is_interrupted = Interrupted;
  EPS_ASSIGN_OR_RETURN(const Descriptor lock, LockFolder(save.root));
  HandleInterrupts();
  SetGraceful(true);
  const absl::StatusOr<std::string> checkpoint = SaveRunningJob(save);
  if (absl::IsCancelled(checkpoint.status()) && Interrupted()) {
    return WithExitCode(checkpoint.status(), InterruptCode());
  }
  EPS_RETURN_IF_ERROR(checkpoint.status());
  Print(absl::StrCat("checkpoint: ", *checkpoint, "\n"));
  return absl::OkStatus();
}

absl::Status ReshardState(const StateArguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const std::optional<JobId> job, ChosenJob(arguments.job));
  EPS_ASSIGN_OR_RETURN(const auto folder, StateFolder::Open(arguments.from));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, folder->OpenCut(job));
  return Write(*state, arguments.servers, arguments);
}

absl::Status RestoreState(const StateArguments& arguments) {
  if (arguments.from == "-" || std::filesystem::is_regular_file(arguments.from)) {
    return RestoreBackupFile(arguments);
  }
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint, ChosenCheckpoint(arguments.from));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> state, OpenCheckpointState(checkpoint));
  return Restore(*state, checkpoint, arguments);
}

absl::Status RunState(const std::vector<std::string>& arguments) {
  CLI::App app{"Lists, checks and removes durable state of jobs; stop the servers first.",
               "eps state"};
  app.require_subcommand(1);
  std::string path;
  std::vector<std::string> jobs;
  bool force = false;
  CLI::App* const ls = app.add_subcommand(
      "ls",
      "list jobs with model, shards, cuts and bytes, remains of removed jobs, and lost+found");
  CLI::App* const rm =
      app.add_subcommand("rm", "remove jobs with all their state, or folders of lost+found");
  CLI::App* const verify =
      app.add_subcommand("verify", "check every byte of all cuts; exits with 65 if one is damaged");
  for (CLI::App* const command : {ls, rm, verify}) {
    command
        ->add_option("STATE", path, "data folder of the servers (storage.path), or of one server")
        ->required();
  }
  rm->add_option("JOB", jobs, "ids of jobs, or paths in lost+found, as ls prints them")->required();
  rm->add_flag("--force", force, "even a job that its server would open when it restarts");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  for (const std::string& job : jobs) {
    if (!IsPath(job)) EPS_RETURN_IF_ERROR(ParseJob("JOB", job).status());
  }
  EPS_ASSIGN_OR_RETURN(const auto folder, StateFolder::Open(path));
  if (ls->parsed()) {
    EPS_ASSIGN_OR_RETURN(const std::string table, folder->Table());
    Print(table);
    return absl::OkStatus();
  }
  if (verify->parsed()) {
    std::string report;
    const absl::Status status = folder->Verify(&report);
    Print(report);
    return status;
  }
  return RemoveAll(folder.get(), jobs, force ? RemoveServed::kRemove : RemoveServed::kRefuse);
}

absl::Status RunBackup(const std::vector<std::string>& arguments) {
  CLI::App app{"Writes the durable state of a job as a checkpoint, in a folder or as one tar file.",
               "eps backup"};
  StateArguments given;
  app.add_option("STATE", given.from, "data folder of the servers (storage.path); stop them first")
      ->required();
  app.add_option("--out", given.out,
                 "folder to write checkpoint-<step> to, a new FILE.tar, or - for stdout")
      ->required();
  app.add_option("--job", given.job, "id of the job, if there are several");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (help.empty()) return SaveState(given);
  std::fputs(help.c_str(), stdout);
  return absl::OkStatus();
}

absl::Status RunRestore(const std::vector<std::string>& arguments) {
  CLI::App app{"Creates durable state from a backup or any other checkpoint.", "eps restore"};
  StateArguments given;
  app.add_option("BACKUP", given.from,
                 "a checkpoint, a folder with a latest checkpoint, a FILE.tar of eps backup, or - "
                 "to read one from stdin")
      ->required();
  app.add_option("--out", given.out, "the new data folder of the servers")->required();
  app.add_option("--servers", given.servers, "number of servers (default: as in the backup)");
  app.add_flag("--dry-run", given.dry_run, "check everything, write nothing");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (help.empty()) return RestoreState(given);
  std::fputs(help.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace eps
