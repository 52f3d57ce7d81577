#include "cli/launch/output_folder.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/guard/folder_lock.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

absl::Status Refused(const std::string& folder, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint.dir: ", folder, " ", text));
}

// Returns the number of steps of the job that wrote a checkpoint; 0 if its configuration cannot be
// read.
uint64_t StepsOf(const std::string& checkpoint) {
  const absl::StatusOr<std::string> yaml = ReadTextFile(absl::StrCat(checkpoint, "/", kConfigFile));
  Config config;
  if (!yaml.ok() || !config.MergeYaml(*yaml, checkpoint).ok()) return 0;
  return config.training.steps.value_or(0);
}

// Returns what the folder holds and what to do about it; empty if it holds no run.
std::string OldRun(const CheckpointConfig& config) {
  const std::string& folder = config.dir;
  std::error_code error;
  const CheckpointFolder* last = nullptr;
  const std::vector<CheckpointFolder> checkpoints = ListCheckpoints(folder);
  for (const CheckpointFolder& checkpoint : checkpoints) {
    if (checkpoint.complete.ok()) last = &checkpoint;
  }
  if (last == nullptr) {
    // The log of a run may be continued from a checkpoint that was saved elsewhere.
    const bool logged =
        config.resume == "none" && fs::file_size(folder + "/metrics.jsonl", error) > 0 && !error;
    return logged ? "holds an unfinished run without a checkpoint; --overwrite replaces it, and "
                    "--resume=latest continues it if its state is durable"
                  : "";
  }
  const uint64_t steps = StepsOf(last->path);
  if (last->step >= steps) {
    return absl::StrCat("holds a finished run of ", last->step,
                        " steps; --overwrite replaces it, and --resume=latest with a larger "
                        "training.steps trains it further");
  }
  return absl::StrCat("holds an unfinished run, with a checkpoint of step ", last->step, " of ",
                      steps, "; --resume=latest continues it, and --overwrite replaces it");
}

}  // namespace

bool ContinuesRun(const CheckpointConfig& config) {
  if (config.resume == "latest") return true;
  if (config.resume == "none") return false;
  std::error_code error;
  fs::path checkpoint = fs::weakly_canonical(config.resume, error);
  if (!checkpoint.has_filename()) checkpoint = checkpoint.parent_path();
  return checkpoint.parent_path() == fs::weakly_canonical(config.dir, error);
}

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Claim(const CheckpointConfig& config,
                                                                  bool overwrite) {
  std::unique_ptr<OutputFolder> folder(new OutputFolder(config.dir));
  if (config.dir.empty()) return folder;
  if (overwrite && ContinuesRun(config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--overwrite and --resume=", config.resume,
        " exclude each other: a run replaces the one in ", config.dir, " or continues it"));
  }
  EPS_ASSIGN_OR_RETURN(folder->lock_, LockFolder(config.dir));
  const std::string old_run = ContinuesRun(config) ? "" : OldRun(config);
  if (!old_run.empty() && !overwrite) return Refused(config.dir, old_run);
  folder->overwrites_ = !old_run.empty();
  return folder;
}

absl::Status OutputFolder::RemoveOldRun() const {
  if (!overwrites_) return absl::OkStatus();
  std::error_code error;
  fs::remove(absl::StrCat(path_, "/", kLatestFile), error);
  fs::remove(path_ + "/trainer_state.json", error);
  for (const CheckpointFolder& checkpoint : ListCheckpoints(path_)) {
    if (!checkpoint.complete.ok()) continue;
    EPS_RETURN_IF_ERROR(RemoveCheckpoint(checkpoint.path, RemoveLatest::kRepoint));
  }
  return absl::OkStatus();
}

}  // namespace eps
