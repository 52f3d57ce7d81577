#include "cli/launch/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folders.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kLockFile[] = ".lock";

// The text of the lock file, for the error of the next run.
std::string OwnerText() {
  std::string command = "unknown";
  const absl::StatusOr<std::string> words = ReadTextFile("/proc/self/cmdline");
  if (words.ok()) command = absl::StrReplaceAll(*words, {{std::string(1, '\0'), " "}});
  char host[256] = "unknown";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat("process ", getpid(), " on ", host, ", started ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::Now(), absl::UTCTimeZone()),
                      ": ", absl::StripSuffix(command, " "));
}

absl::Status Refused(const std::string& folder, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint.dir: ", folder, " ", text));
}

// Returns whether checkpoint.resume names a checkpoint of this folder.
bool Continues(const CheckpointConfig& config) {
  if (config.resume == "latest") return true;
  if (config.resume == "none") return false;
  std::error_code error;
  fs::path checkpoint = fs::weakly_canonical(config.resume, error);
  if (!checkpoint.has_filename()) checkpoint = checkpoint.parent_path();
  return checkpoint.parent_path() == fs::weakly_canonical(config.dir, error);
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

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Claim(const CheckpointConfig& config,
                                                                  bool overwrite) {
  std::unique_ptr<OutputFolder> folder(new OutputFolder(config.dir));
  if (config.dir.empty()) return folder;
  if (overwrite && Continues(config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--overwrite and --resume=", config.resume,
        " exclude each other: a run replaces the one in ", config.dir, " or continues it"));
  }
  const absl::Status created = CreateFolder(config.dir);
  if (!created.ok()) {
    const std::string text = absl::StrCat(created.message(), " (checkpoint.dir)");
    return absl::IsPermissionDenied(created) ? absl::PermissionDeniedError(text) : IoError(text);
  }
  EPS_RETURN_IF_ERROR(folder->Lock());
  const std::string old_run = Continues(config) ? "" : OldRun(config);
  if (!old_run.empty() && !overwrite) return Refused(config.dir, old_run);
  folder->overwrites_ = !old_run.empty();
  return folder;
}

absl::Status OutputFolder::Lock() {
  const std::string path = absl::StrCat(path_, "/", kLockFile);
  lock_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_.ok()) {
    const std::string text =
        absl::StrCat("cannot open ", path, ": ", std::strerror(errno), " (checkpoint.dir)");
    return errno == EACCES ? absl::PermissionDeniedError(text) : IoError(text);
  }
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) {
    const std::string owner = OwnerText();
    // The text is advice for people: a lock without it still holds.
    if (ftruncate(lock_.get(), 0) != 0 || pwrite(lock_.get(), owner.data(), owner.size(), 0) < 0) {
      std::fprintf(stderr, "note: cannot write %s: %s\n", path.c_str(), std::strerror(errno));
    }
    return absl::OkStatus();
  }
  if (errno == EWOULDBLOCK) {
    const absl::StatusOr<std::string> owner = ReadTextFile(path);
    return Refused(path_, absl::StrCat("is in use by ",
                                       owner.ok() && !owner->empty() ? *owner : "another process",
                                       "; wait for it, stop it, or choose another folder (--out)"));
  }
  std::printf("note: cannot lock %s (%s): nothing keeps a second run out of %s\n", path.c_str(),
              std::strerror(errno), path_.c_str());
  return absl::OkStatus();
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
