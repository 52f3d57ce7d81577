#ifndef EPS_CHECKPOINT_CHECKPOINT_FOLDERS_H_
#define EPS_CHECKPOINT_CHECKPOINT_FOLDERS_H_

// The checkpoints of a run by name and manifest (docs/formats/checkpoint.md): which are there,
// which are complete, which one is the latest, and which may go. Nothing here reads a tensor.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/files.h"

namespace eps {

inline constexpr char kManifestFile[] = "eps/manifest.json";
inline constexpr char kSpecFile[] = "eps/job_spec.txt";
inline constexpr char kLatestFile[] = "latest";

// eps/manifest.json, which is written last: a folder without one is not a checkpoint.
struct CheckpointManifest {
  uint64_t step = 0;
  uint64_t version = 0;
  uint64_t update = 0;
  uint64_t term = 0;
  double lagged_norm = 0;
  std::string spec_digest;  // in hexadecimal digits
  int numerics_version = 0;
  std::string optimizer;
  // Of whose durable state it was made (eps checkpoint save, eps backup); 0: it was not.
  uint32_t servers = 0;
  std::map<std::string, FileSums> files;  // every other file, by its path in the folder
  bool has_own_sum = false;               // of one that was read: it fits its own CRC32C
};

std::string ManifestText(const CheckpointManifest& manifest);
// NotFound if there is none. DataLoss names the file and what is wrong with it.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& folder);
// `path` is the text's name in errors.
absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& text, const std::string& path);

// DataLoss if a file's content is not what the manifest says; `path` is its name in errors.
absl::Status CheckSums(const std::string& path, const FileSums& found, const FileSums& expected);

// DataLoss names the file of `manifest` that is missing or has another size; with `sums` also one
// whose SHA-256 or CRC32C differs, for which it is read.
absl::Status CheckFile(const std::string& folder, const std::string& name, const FileSums& expected,
                       bool sums);
absl::Status CheckFiles(const std::string& folder, const CheckpointManifest& manifest, bool sums);

struct CheckpointFolder {
  uint64_t step = 0;
  std::string name;  // checkpoint-<step>
  std::string path;
  absl::Status complete;  // OK: the manifest is there, and every file with its size
};

// The folders of `root` that are named checkpoint-<step>, by number: 9 before 10. Empty if there is
// no `root`. Links, files and hidden folders are no checkpoints.
std::vector<CheckpointFolder> ListCheckpoints(const std::string& root);

// The folder that --resume=latest takes: the one that `root`/latest names; without that file the
// complete one with the highest number; empty if there is none. DataLoss, with what to do about it,
// if `latest` names a folder that is not there or not complete.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);

// What to do instead of resuming from `damaged` (a folder's name), to be put behind the error: the
// last other complete checkpoint of `root`, or that none is left.
std::string ResumeAdvice(const std::string& root, const std::string& damaged);

// Removes checkpoints from the lowest step on until at most `limit` are left (0: no limit), and
// returns their names. Only complete ones of ours count and go; the one that `latest` names stays.
// A crash leaves a checkpoint whole or under a hidden name, which the next write removes. Stops at
// the first error.
absl::StatusOr<std::vector<std::string>> RemoveOldCheckpoints(const std::string& root,
                                                              uint64_t limit);

// Whether and how RemoveCheckpoint removes the one that `latest` names.
enum class RemoveLatest { kRefuse, kRepoint };

// Removes one checkpoint as RemoveOldCheckpoints does. `folder` is its path. The one that `latest`
// names is refused with FailedPrecondition, or `latest` names the complete one with the highest
// step first, or goes if there is none. NotFound, or FailedPrecondition for a folder that is no
// checkpoint of ours: with another name, without a manifest, a link.
absl::Status RemoveCheckpoint(const std::string& folder, RemoveLatest latest);
// The same refusals, and nothing is removed.
absl::Status CheckRemovable(const std::string& folder, RemoveLatest latest);

}  // namespace eps

#endif  // EPS_CHECKPOINT_CHECKPOINT_FOLDERS_H_
