#include "base/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/status_macros.h"

namespace eps {
namespace {

absl::Status Errno(absl::string_view what, const std::string& path, int error) {
  const std::string text =
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error), " (errno ", error, ")");
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EEXIST:
      return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(text);
    default:
      return IoError(text);
  }
}

// Syncs the folder above an existing one.
absl::Status SyncAbove(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return Errno("look at", path, errno);
  if (!S_ISDIR(found.st_mode)) return Errno("create the folder", path, EEXIST);
  const absl::Status synced = SyncPath(FolderOf(path));
  // This process cannot have created an entry in a folder that it may not even read.
  return absl::IsPermissionDenied(synced) ? absl::OkStatus() : synced;
}

}  // namespace

std::string FolderOf(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  const size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

absl::Status SyncPath(const std::string& path) {
  const Descriptor file(open(path.empty() ? "." : path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return Errno("open", path, errno);
  return fsync(file.get()) == 0 ? absl::OkStatus() : Errno("sync", path, errno);
}

absl::Status CreateFolder(const std::string& path) {
  const std::string above = FolderOf(path);
  if (mkdir(path.c_str(), 0777) == 0) return SyncPath(above);
  if (errno == EEXIST) return SyncAbove(path);
  if (errno != ENOENT || above == path) return Errno("create the folder", path, errno);
  EPS_RETURN_IF_ERROR(CreateFolder(above));
  if (mkdir(path.c_str(), 0777) == 0) return SyncPath(above);
  return errno == EEXIST ? SyncAbove(path) : Errno("create the folder", path, errno);
}

}  // namespace eps
