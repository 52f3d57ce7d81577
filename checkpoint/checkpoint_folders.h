#ifndef EPS_CHECKPOINT_CHECKPOINT_FOLDERS_H_
#define EPS_CHECKPOINT_CHECKPOINT_FOLDERS_H_

// The checkpoints of a run by name and manifest (docs/formats/checkpoint.md): which exist, which
// are complete, which one is the latest, and which may be removed. Nothing here reads a tensor.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/files/files.h"
#include "base/job/drivers/driver_lease.h"
#include "base/numerics/loss_scale.h"

namespace eps {

inline constexpr char kManifestFile[] = "eps/manifest.json";
inline constexpr char kSpecFile[] = "eps/job_spec.txt";
inline constexpr char kConfigFile[] = "eps/config.yaml";
inline constexpr char kProfilesFile[] = "eps/compute_profiles.txt";
inline constexpr char kLatestFile[] = "latest";
inline constexpr char kBestFile[] = "best";

// eps/manifest.json, which is written last: a folder without it is not a checkpoint.
struct CheckpointManifest {
  uint64_t step = 0;
  uint64_t version = 0;
  uint64_t update = 0;
  uint64_t term = 0;
  double lagged_norm = 0;
  std::optional<LossScale> loss_scale;
  std::string spec_digest;  // in hexadecimal digits
  int numerics_version = 0;
  std::string optimizer;
  // The number of servers whose durable state became this checkpoint (eps checkpoint save, eps
  // backup); 0 if a run wrote it.
  uint32_t servers = 0;
  DriverLease driver;  // of the driver that wrote it; none if the job was not on a board
  std::map<std::string, FileSums> files;  // every other file, by its path in the folder
  bool has_own_sum = false;               // set by reading: it has a CRC32C of itself, which fits
};

std::string ManifestText(const CheckpointManifest& manifest);
// NotFound if the folder has no manifest. DataLoss names the file and what is wrong with it.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& folder);
// `path` names the text in errors.
absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& text, const std::string& path);

// DataLoss if a file's sums are not the manifest's; `path` names the file in errors.
absl::Status CheckSums(const std::string& path, const FileSums& found, const FileSums& expected);

// DataLoss names a file of `manifest` that is missing or has another size. With `sums`, reads the
// files and also reports one whose SHA-256 or CRC32C differs.
absl::Status CheckFile(const std::string& folder, const std::string& name, const FileSums& expected,
                       bool sums);
absl::Status CheckFiles(const std::string& folder, const CheckpointManifest& manifest, bool sums);

// A checkpoint in a folder of checkpoints.
struct CheckpointFolder {
  uint64_t step = 0;
  std::string name;       // checkpoint-<step>
  std::string path;       // ends with the name, or with ReplacedName (guard/checkpoint_place.h)
  absl::Status complete;  // OK if the manifest exists, and every file has its size
};

// Returns the folders of `root` named checkpoint-<step>, by number: 9 before 10. Empty if `root`
// does not exist. Links, files and hidden folders are not checkpoints.
std::vector<CheckpointFolder> ListCheckpoints(const std::string& root);

// Makes `root`/latest name the checkpoint `name`, whose manifest this is. Leaves it where it is if
// drivers of one board wrote both and the other checkpoint is of a later lease, or of the same one
// and a later step (docs/protocol.md, "Drivers", D8).
absl::Status PointLatest(const std::string& root, const std::string& name,
                         const CheckpointManifest& manifest);
// Returns the folder that --resume=latest uses: the one that `root`/latest names; without that file
// the complete one with the highest number; empty if there is none. DataLoss, with advice, if
// `latest` names a folder that does not exist or is not complete.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);

// Returns the folder that `checkpoint.resume` names; empty for "none". "latest" gives what
// LatestCheckpoint finds in `checkpoint.dir`: empty if there is no checkpoint yet, so that a job
// that is started repeatedly with the same arguments starts first and then resumes. InvalidArgument
// for "latest" without checkpoint.dir; NotFound for a folder that is not a complete checkpoint.
absl::StatusOr<std::string> ResumeFolder(const CheckpointConfig& checkpoint);

// Returns advice to append to the error about `damaged` (a folder's name): to resume from the last
// other complete checkpoint of `root`, or that none is left.
std::string ResumeAdvice(const std::string& root, const std::string& damaged);

// Returns the name of the checkpoint that `root`/best names, the best one by eval.best_metric;
// empty if there is no such file, or it names no checkpoint.
std::string BestCheckpointName(const std::string& root);
// Makes `root`/best name a checkpoint, or removes the file if `name` is empty. Errors are those of
// ReplaceFile.
absl::Status SetBestCheckpoint(const std::string& root, const std::string& name);

// Removes checkpoints from the lowest step on until at most `limit` are left, and returns their
// names; 0 removes none. Counts and removes only complete checkpoints of EPS, and never those that
// `latest` and `best` name. A crash leaves a checkpoint complete or under a hidden name, which the
// next write removes. Stops at the first error.
absl::StatusOr<std::vector<std::string>> RemoveOldCheckpoints(const std::string& root,
                                                              uint64_t limit);

// How RemoveCheckpoint treats a checkpoint that `latest` or `best` names.
enum class RemoveLatest { kRefuse, kRepoint };

// Removes the checkpoint at `folder` as RemoveOldCheckpoints does. If `latest` or `best` names it,
// kRefuse returns FailedPrecondition; kRepoint first points `latest` at the complete checkpoint
// with the highest step, or removes `latest` if there is none, and removes `best`. NotFound if
// `folder` does not exist; FailedPrecondition if it is not a checkpoint of EPS: another name, no
// manifest, or a link.
absl::Status RemoveCheckpoint(const std::string& folder, RemoveLatest latest);
// Returns the refusals of RemoveCheckpoint and removes nothing.
absl::Status CheckRemovable(const std::string& folder, RemoveLatest latest);

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_FOLDERS_H_
