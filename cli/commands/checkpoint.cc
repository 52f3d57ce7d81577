// `eps checkpoint {ls,digest,verify,export,convert,save,reshard,rm}`: inspects and converts
// checkpoints and durable state without servers or workers; `save` also reads a running job.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/app_arguments.h"
#include "base/config/config.h"
#include "base/descriptor.h"
#include "base/job/optimizers.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/checkpoint_report.h"
#include "checkpoint/convert/optimizer_conversion.h"
#include "checkpoint/guard/folder_lock.h"
#include "checkpoint/job_state.h"
#include "cli/commands/state.h"
#include "cli/launch/security/security_flags.h"

namespace eps {
namespace {

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

struct Arguments {
  std::string folder;
  std::vector<std::string> folders;
  bool force = false;
  StateArguments state;
  ExportOptions options;
  std::string optimizer;
  bool reset_state = false;
  std::string max_shard_size = "5GB";
};

absl::Status RunVerify(const std::string& folder) {
  std::string report;
  const absl::Status status = VerifyCheckpoint(folder, &report);
  Print(report);
  return status;
}

// Checks all checkpoints before it removes the first.
absl::Status RunRemove(const Arguments& arguments) {
  const RemoveLatest latest = arguments.force ? RemoveLatest::kRepoint : RemoveLatest::kRefuse;
  for (const std::string& folder : arguments.folders) {
    EPS_RETURN_IF_ERROR(CheckRemovable(folder, latest));
  }
  for (const std::string& folder : arguments.folders) {
    EPS_RETURN_IF_ERROR(RemoveCheckpoint(folder, latest));
    Print(absl::StrCat("removed: ", folder, "\n"));
  }
  return absl::OkStatus();
}

absl::Status RunExport(Arguments arguments) {
  absl::StatusOr<uint64_t> size = ParseSize(arguments.max_shard_size);
  if (!size.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--max-shard-size: ", size.status().message()));
  }
  arguments.options.checkpoint = arguments.folder;
  arguments.options.max_shard_bytes = *size;
  EPS_ASSIGN_OR_RETURN(const ExportSummary summary, ExportCheckpoint(arguments.options));
  Print(absl::StrCat("export: ", arguments.options.out, ": ", FormatCount(summary.tensors),
                     " tensors, ", FormatCount(summary.elements), " parameters, ",
                     FormatBytes(static_cast<double>(summary.bytes)), " as ",
                     arguments.options.dtype, " in ", summary.shards,
                     summary.shards == 1 ? " file\n" : " files\n"));
  return absl::OkStatus();
}

absl::Status RunConvert(const Arguments& arguments) {
  ConversionOptions options;
  options.reset_state = arguments.reset_state;
  if (!FindName(arguments.optimizer, &options.optimizer)) {
    return absl::InvalidArgumentError(absl::StrCat("--optimizer: expected one of ",
                                                   absl::StrJoin(NamesOf<OptimizerName>(), ", "),
                                                   ", found \"", arguments.optimizer, "\""));
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<JobState> from, OpenCheckpointState(arguments.folder));
  const OptimizerSpec old = from->head().spec.optimizer;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<JobState> converted,
                       ConvertOptimizer(std::move(from), options));
  EPS_ASSIGN_OR_RETURN(const Descriptor lock, LockFolder(arguments.state.out));
  EPS_ASSIGN_OR_RETURN(const std::string checkpoint,
                       SaveCheckpoint(*converted, arguments.state.out));
  const OptimizerSpec& now = converted->head().spec.optimizer;
  Print(absl::StrCat("converted: ", checkpoint, ": ", NameOf(old.name), " to ", NameOf(now.name),
                     options.reset_state ? ", with a state of zeros\n" : "\n"));
  if (now.lr != old.lr) Print(absl::StrCat("optimizer.lr: ", old.lr, " becomes ", now.lr, "\n"));
  Print(absl::StrCat("next:\n  eps train --config=", checkpoint,
                     "/eps/config.yaml --out=", arguments.state.out, " --resume=latest\n"));
  return absl::OkStatus();
}

absl::Status RunSave(const StateArguments& arguments) {
  if (arguments.from.empty() == arguments.addresses.empty()) {
    return absl::InvalidArgumentError(
        "eps checkpoint save: give either STATE, the folder of stopped servers, or "
        "--servers=host:port of running ones");
  }
  return arguments.from.empty() ? SaveRunning(arguments) : SaveState(arguments);
}

// The subcommands that convert between checkpoints and state.
struct StateCommands {
  CLI::App* save;
  CLI::App* reshard;
  CLI::App* rm;
};

StateCommands AddStateCommands(CLI::App* app, Arguments* given) {
  StateCommands commands;
  commands.save = app->add_subcommand(
      "save",
      "write a checkpoint: of a running job at its next border (--servers), or of the youngest cut "
      "of durable state (STATE; stop its servers first)");
  commands.reshard = app->add_subcommand(
      "reshard", "convert durable state to another number of servers; stop the servers first");
  for (CLI::App* const command : {commands.save, commands.reshard}) {
    CLI::Option* const state = command->add_option("STATE", given->state.from,
                                                   "data folder of the servers (storage.path)");
    if (command == commands.reshard) state->required();
    command->add_option("--job", given->state.job, "id of the job, if there are several");
  }
  commands.save->add_option("--servers", given->state.addresses,
                            "HOST:PORT of servers that run the job, in place of STATE");
  AddSecurityFlags(commands.save, &given->state.security);
  commands.save->add_option("--patience", given->state.patience,
                            "seconds to wait for the end of the open step (default 600)");
  commands.save->add_option("--out", given->state.out, "folder to write checkpoint-<step> to")
      ->required();
  commands.reshard->add_option("--out", given->state.out, "the new folder")->required();
  commands.reshard->add_option("--servers", given->state.servers, "the new number of servers")
      ->required();
  commands.rm = app->add_subcommand("rm", "remove checkpoints");
  commands.rm->add_option("CHECKPOINT", given->folders, "folders checkpoint-<step>")->required();
  commands.rm->add_flag("--force", given->force, "even one that `latest` or `best` names");
  return commands;
}

}  // namespace

// InvalidArgument for malformed arguments; other errors are those of checkpoint/.
absl::Status RunCheckpoint(const std::vector<std::string>& arguments) {
  CLI::App app{"Inspects and converts checkpoints and durable state; needs no server or worker.",
               "eps checkpoint"};
  app.require_subcommand(1);
  Arguments given;
  CLI::App* const ls = app.add_subcommand(
      "ls", "list the checkpoints of an output folder, or the cuts of a state folder");
  ls->add_option("DIR", given.folder, "checkpoint.dir or storage.path of a run")->required();
  CLI::App* const digest = app.add_subcommand(
      "digest", "print SHA-256 digests of the weights, the optimizer state and the residuals");
  digest->add_option("FOLDER", given.folder, "a checkpoint, or a folder of weights")->required();
  CLI::App* const verify = app.add_subcommand(
      "verify",
      "check every byte and the structure of a checkpoint; exits with 65 if it is damaged");
  verify->add_option("FOLDER", given.folder, "a checkpoint")->required();
  CLI::App* const exporter = app.add_subcommand(
      "export", "write the weights as a plain Hugging Face folder, without optimizer state");
  exporter->add_option("FOLDER", given.folder, "a checkpoint")->required();
  exporter->add_option("--out", given.options.out, "the new folder")->required();
  exporter->add_option("--dtype", given.options.dtype, "f32, bf16 or f16 (default f32)");
  exporter->add_flag("--merge", given.options.merge,
                     "LoRA: add the adapters to the weights, for transformers; without it, write "
                     "a folder that peft loads");
  exporter->add_option("--max-shard-size,--max_shard_size", given.max_shard_size,
                       "largest file of weights, such as 500MB (default 5GB)");
  CLI::App* const convert = app.add_subcommand(
      "convert", "write a checkpoint with the state of another optimizer, for a new job");
  convert->add_option("CHECKPOINT", given.folder, "a checkpoint")->required();
  convert->add_option("--optimizer", given.optimizer, "the new optimizer.name")->required();
  convert->add_option("--out", given.state.out, "folder to write checkpoint-<step> to")->required();
  convert->add_flag("--reset-state", given.reset_state,
                    "begin with a state of zeros; needed where the old one means something else");
  const StateCommands state = AddStateCommands(&app, &given);
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  if (verify->parsed()) return RunVerify(given.folder);
  if (exporter->parsed()) return RunExport(std::move(given));
  if (convert->parsed()) return RunConvert(given);
  if (state.save->parsed()) return RunSave(given.state);
  if (state.reshard->parsed()) return ReshardState(given.state);
  if (state.rm->parsed()) return RunRemove(given);
  EPS_ASSIGN_OR_RETURN(const std::string text, ls->parsed() ? CheckpointTable(given.folder)
                                                            : CheckpointDigest(given.folder));
  Print(text);
  return absl::OkStatus();
}

}  // namespace eps
