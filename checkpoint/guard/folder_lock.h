#ifndef EPS_CHECKPOINT_GUARD_FOLDER_LOCK_H_
#define EPS_CHECKPOINT_GUARD_FOLDER_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace eps {

// Creates a folder of checkpoints and locks `.lock` in it: one program at a time writes there. The
// lock ends with the descriptor. Says so, and returns none, if the file system has no locks.
// InvalidArgument if another process has the lock, with its id, start and command; PermissionDenied
// or IoError if the folder or the file cannot be made.
absl::StatusOr<Descriptor> LockFolder(const std::string& folder);

}  // namespace eps

#endif  // EPS_CHECKPOINT_GUARD_FOLDER_LOCK_H_
