#ifndef EPS_BASE_FILES_FILES_H_
#define EPS_BASE_FILES_FILES_H_

// Files and folders as checkpoints need them: what was reported written survives a crash. Errors
// carry the path and the system's reason: IoError (base/exit_code.h), NotFound, PermissionDenied,
// or ResourceExhausted when the disk is full.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// All functions may be called from any thread; two that write one path need their own order.

// The whole content of a file. InvalidArgument if it is a folder.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Writes all of it to an open file or pipe; `path` is its name in errors.
absl::Status WriteTo(int fd, const std::string& path, absl::string_view content);

// Writes a new or emptied file and syncs it; the folder that holds it is not synced.
absl::Status WriteSynced(const std::string& path, const std::string& content);

// Writes a file through a temporary name, synced, so that it is old or new but never half.
absl::Status ReplaceFile(const std::string& path, const std::string& content);

// Makes the change of a folder (or file) durable.
absl::Status SyncPath(const std::string& path);

// Creates a folder and those above it; one that is there is left as it is.
absl::Status CreateFolder(const std::string& path);

// A new, empty folder below TMPDIR (or /tmp) whose name begins with "eps-<purpose>-". It stays
// until the caller removes it.
absl::StatusOr<std::string> MakeTemporaryFolder(absl::string_view purpose);

// Makes `from` appear as `to` in one step, with all that is in it.
absl::Status RenamePath(const std::string& from, const std::string& to);

// Where something new is to appear whole or not at all.
struct OutPath {
  std::string path;    // absolute, without a slash at the end
  std::string above;   // the folder that it lies in
  std::string hidden;  // its name until it is whole: .NAME.tmp
};
OutPath LocateOut(const std::string& path);

// A folder that is removed, with all that is in it, when this ends.
struct ScratchFolder {
  std::string path;

  // Makes it, without what a crash has left there.
  absl::Status MakeEmpty() const;
  ~ScratchFolder();
};

// What identifies a file's content.
struct FileSums {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  std::string sha256;  // in hexadecimal digits
};
// Reads the whole file once.
absl::StatusOr<FileSums> SumFile(const std::string& path);

}  // namespace eps

#endif  // EPS_BASE_FILES_FILES_H_
