#include "worker/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "base/status_macros.h"

namespace eps {

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path, const std::string& key) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) {
    const int error = errno;
    const std::string text =
        absl::StrCat("cannot open data file ", path, " (", key, "): ", strerror(error));
    return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                               : absl::PermissionDeniedError(text);
  }
  MappedFile file;
  EPS_RETURN_IF_ERROR(file.Map(fd.get(), path, key));
  return file;
}

absl::Status MappedFile::Map(int fd, const std::string& path, const std::string& key) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return absl::InternalError(absl::StrCat("cannot stat data file ", path, ": ", strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " names ", path, ", which is not a regular file"));
  }
  if (info.st_size == 0) return absl::OkStatus();
  void* p = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  if (p == MAP_FAILED) {
    return absl::InternalError(absl::StrCat("cannot map data file ", path, " of ", info.st_size,
                                            " bytes: ", strerror(errno)));
  }
  data_ = static_cast<const uint8_t*>(p);
  size_ = static_cast<uint64_t>(info.st_size);
  return absl::OkStatus();
}

}  // namespace eps
