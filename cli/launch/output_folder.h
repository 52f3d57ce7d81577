#ifndef EPS_CLI_LAUNCH_OUTPUT_FOLDER_H_
#define EPS_CLI_LAUNCH_OUTPUT_FOLDER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/descriptor.h"

namespace eps {

// Returns whether checkpoint.resume names the run in checkpoint.dir, or a checkpoint there.
bool ContinuesRun(const CheckpointConfig& config);

// The claim of a run on its output folder: one run at a time writes there, and no run replaces
// another one by accident. The destructor gives the folder back. Thread-compatible.
class OutputFolder {
 public:
  // Creates checkpoint.dir and locks it (checkpoint/guard/folder_lock.h); claims nothing if
  // checkpoint.dir is empty.
  //
  // InvalidArgument if the folder holds a run that checkpoint.resume does not continue and
  // `overwrite` is false; or if `overwrite` and checkpoint.resume=latest contradict each other.
  // Other errors are those of LockFolder.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Claim(const CheckpointConfig& config,
                                                             bool overwrite);

  // Removes the checkpoints of the run that this one overwrites; does nothing if it overwrites
  // none. Call it when the new run starts, so that a run that is refused before removes nothing.
  absl::Status RemoveOldRun() const;
  // Returns whether this run overwrites another one.
  bool overwrites() const { return overwrites_; }

 private:
  explicit OutputFolder(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  Descriptor lock_;
  bool overwrites_ = false;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_OUTPUT_FOLDER_H_
