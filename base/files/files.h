#ifndef EPS_BASE_FILES_FILES_H_
#define EPS_BASE_FILES_FILES_H_

// Files for checkpoints: data that a function reports as written survives a crash.
// Errors contain the path and the reason of the system: IoError (base/exit_code.h), NotFound,
// PermissionDenied, or ResourceExhausted when the disk is full.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Call the functions from any thread; the caller orders two writes to one path.

// Returns the whole content of a file. InvalidArgument if it is a folder.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Writes all of it to an open file or pipe; `path` is its name in errors.
absl::Status WriteTo(int fd, const std::string& path, absl::string_view content);

// Creates or empties a file, writes it and syncs it, but not the folder that it is in.
absl::Status WriteSynced(const std::string& path, const std::string& content);

// Replaces a file by way of a synced temporary one, so that a crash leaves the old or the new
// content.
absl::Status ReplaceFile(const std::string& path, const std::string& content);

// The same for a file that only its owner may read, at any moment. Not at the same time as another
// thread creates files: it changes the process's umask meanwhile.
absl::Status ReplaceSecret(const std::string& path, const std::string& content);

// Creates an empty folder below TMPDIR (or /tmp) whose name begins with "eps-<purpose>-". The
// caller removes it.
absl::StatusOr<std::string> MakeTemporaryFolder(absl::string_view purpose);

// Renames a file or folder in one atomic step.
absl::Status RenamePath(const std::string& from, const std::string& to);

// The names of an output that must appear whole or not at all.
struct OutPath {
  std::string path;    // absolute, without a slash at the end
  std::string above;   // the folder that it lies in
  std::string hidden;  // its name until it is whole: .NAME.tmp
};
OutPath LocateOut(const std::string& path);

// Removes a folder and its content on destruction.
struct ScratchFolder {
  std::string path;

  // Creates the folder, without the content that a crash may have left there.
  absl::Status MakeEmpty() const;
  ~ScratchFolder();
};

// Size and checksums of a file.
struct FileSums {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  std::string sha256;  // in hexadecimal digits
};
// Reads the whole file once.
absl::StatusOr<FileSums> SumFile(const std::string& path);

}  // namespace eps

#endif  // EPS_BASE_FILES_FILES_H_
