#include "base/machine/disk_room.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/folder.h"

namespace eps {

absl::StatusOr<uint64_t> FreeBytes(const std::string& path) {
  std::string folder = path.empty() ? "." : path;
  struct statvfs found {};
  while (statvfs(folder.c_str(), &found) != 0) {
    const int error = errno;
    const std::string above = FolderOf(folder);
    if (error != ENOENT || above == folder) {
      const std::string text =
          absl::StrCat("cannot ask for the free space of ", folder, ": ", std::strerror(error));
      if (error == EACCES) return absl::PermissionDeniedError(text);
      return IoError(text);
    }
    folder = above;
  }
  return uint64_t{found.f_bavail} * found.f_frsize;
}

uint64_t OccupiedBytes(const std::string& path) {
  constexpr uint64_t kBlock = 512;  // the unit of st_blocks
  uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator it(path, error);
  for (const std::filesystem::recursive_directory_iterator end; !error && it != end;
       it.increment(error)) {
    struct stat file {};
    if (lstat(it->path().c_str(), &file) == 0) bytes += uint64_t(file.st_blocks) * kBlock;
  }
  return bytes;
}

}  // namespace eps
