#ifndef EPS_BASE_FOLDER_H_
#define EPS_BASE_FOLDER_H_

// Folders that survive a power cut. Thread-safe. Errors contain the path and the reason of the
// system: NotFound, PermissionDenied, AlreadyExists, ResourceExhausted when the disk is full, or
// IoError (base/exit_code.h).

#include <string>

#include "absl/status/status.h"

namespace eps {

// Returns the folder that `path` lies in: "." for a bare name, "/" for "/".
std::string FolderOf(const std::string& path);

// Syncs a folder or a file. An empty path is the working directory.
absl::Status SyncPath(const std::string& path);

// Creates a folder and its parents, durably. It syncs the folder above each of them. This includes
// a folder that exists: the process that created it may have been killed before that sync.
// AlreadyExists if something else has that name.
absl::Status CreateFolder(const std::string& path);

}  // namespace eps

#endif  // EPS_BASE_FOLDER_H_
