#include "base/files/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/folder.h"
#include "base/status_macros.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  return IoError(text);
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder, expected a file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int code = errno;
    const std::string text = absl::StrCat("cannot open ", path, ": ", std::strerror(code));
    if (code == ENOENT || code == ENOTDIR) return absl::NotFoundError(text);
    if (code == EACCES) return absl::PermissionDeniedError(text);
    return absl::InternalError(text);
  }
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad()) return absl::InternalError(absl::StrCat("cannot read ", path));
  return content.str();
}

absl::Status WriteTo(int fd, const std::string& path, absl::string_view content) {
  while (!content.empty()) {
    const ssize_t wrote = write(fd, content.data(), content.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return Errno("write", path);
    content.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::Status WriteSynced(const std::string& path, const std::string& content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Errno("create", path);
  absl::Status status = WriteTo(fd, path, content);
  if (status.ok() && fsync(fd) != 0) status = Errno("sync", path);
  if (close(fd) != 0 && status.ok()) status = Errno("close", path);
  return status;
}

absl::Status ReplaceFile(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".tmp";
  EPS_RETURN_IF_ERROR(WriteSynced(temporary, content));
  EPS_RETURN_IF_ERROR(RenamePath(temporary, path));
  return SyncPath(FolderOf(path));
}

absl::Status ReplaceSecret(const std::string& path, const std::string& content) {
  const mode_t before = umask(077);
  const absl::Status written = ReplaceFile(path, content);
  umask(before);
  return written;
}

absl::StatusOr<std::string> MakeTemporaryFolder(absl::string_view purpose) {
  const char* const base = std::getenv("TMPDIR");
  std::string path =
      absl::StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/eps-", purpose, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return Errno("create (TMPDIR)", path);
  return path;
}

absl::Status RenamePath(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return Errno("rename to", to);
  return absl::OkStatus();
}

OutPath LocateOut(const std::string& path) {
  std::error_code ignored;
  fs::path absolute = fs::absolute(path, ignored).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  OutPath out;
  out.path = absolute.string();
  out.above = absolute.parent_path().string();
  out.hidden = absl::StrCat(out.above, "/.", absolute.filename().string(), ".tmp");
  return out;
}

absl::Status ScratchFolder::MakeEmpty() const {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    errno = error.value();
    return Errno("remove", path);
  }
  return CreateFolder(path);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

absl::StatusOr<FileSums> SumFile(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return Errno("open", path);
  FileSums sums;
  Sha256 sha256;
  std::string buffer(size_t{1} << 20, '\0');
  while (true) {
    const ssize_t got = read(file.get(), &buffer[0], buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Errno("read", path);
    if (got == 0) break;
    const absl::string_view piece(buffer.data(), static_cast<size_t>(got));
    sums.bytes += piece.size();
    sums.crc32c = Crc32c(piece, sums.crc32c);
    sha256.Update(piece);
  }
  sums.sha256 = ToHex(sha256.Finish());
  return sums;
}

}  // namespace eps
