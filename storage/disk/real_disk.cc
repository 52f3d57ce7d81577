#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/descriptor.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/disk/disk.h"
#include "storage/disk/fill.h"
#include "storage/disk/io_queue.h"

namespace eps {
namespace {

absl::Status Errno(const std::string& path, absl::string_view operation, int error) {
  const std::string text =
      absl::StrCat(path, ": ", operation, ": ", std::strerror(error), " (errno ", error, ")");
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EEXIST:
      return absl::AlreadyExistsError(text);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

class RealFile final : public AsyncFile {
 public:
  RealFile(std::string path, Descriptor fd, uint64_t size, FileIdentity identity, IoQueue* queue)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        size_(size),
        identity_(identity),
        queue_(queue) {}

  void Read(uint64_t offset, absl::Span<uint8_t> into, Done done) override {
    Move(IoRequest::Kind::kRead, offset, into.data(), into.size(), std::move(done));
  }
  void Write(uint64_t offset, absl::Span<const uint8_t> from, Done done) override {
    Move(IoRequest::Kind::kWrite, offset, const_cast<uint8_t*>(from.data()), from.size(),
         std::move(done));
  }
  void Sync(Done done) override { Move(IoRequest::Kind::kSync, 0, nullptr, 0, std::move(done)); }
  const std::string& path() const override { return path_; }
  uint64_t size() const override { return size_; }
  FileIdentity identity() const override { return identity_; }

 private:
  void Move(IoRequest::Kind kind, uint64_t offset, uint8_t* data, uint64_t size, Done done) {
    EPS_CHECK_MSG(offset % kDiskBlock == 0 && size % kDiskBlock == 0 &&
                      reinterpret_cast<uintptr_t>(data) % kDiskBlock == 0,
                  path_ << ": " << size << " bytes at offset " << offset << " are not aligned");
    auto request = std::make_unique<IoRequest>();
    request->kind = kind;
    request->fd = fd_.get();
    request->path = path_;
    request->offset = offset;
    request->data = data;
    request->size = size;
    request->done = std::move(done);
    if (offset > size_ || size > size_ - offset) {
      request->kind = IoRequest::Kind::kFail;
      request->status = absl::OutOfRangeError(
          absl::StrCat(path_, ": ", size, " bytes at offset ", offset, " of a file of ", size_));
    }
    queue_->Start(std::move(request));
  }

  const std::string path_;
  const Descriptor fd_;
  const uint64_t size_;
  const FileIdentity identity_;
  IoQueue* const queue_;
};

class RealLock final : public Disk::Lock {
 public:
  explicit RealLock(Descriptor fd) : fd_(std::move(fd)) {}

 private:
  const Descriptor fd_;  // closing it releases the lock
};

class RealDisk final : public Disk {
 public:
  explicit RealDisk(const DiskOptions& options)
      : depth_(std::max(options.queue_depth, 1u)), fill_meter_(options.fill_meter_or_null) {
    if (options.allow_io_uring) {
      absl::StatusOr<std::unique_ptr<IoQueue>> queue = NewUringQueue(depth_);
      if (queue.ok()) {
        queue_ = std::move(*queue);
        return;
      }
      EPS_LOG_WARN("storage: threads with pread and pwrite instead of io_uring: "
                   << queue.status().message());
    }
    queue_ = NewThreadQueue(depth_);
  }

  absl::Status CreateFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::Status CreateFile(const std::string& path, uint64_t size) override;
  absl::StatusOr<std::unique_ptr<AsyncFile>> Open(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;

 private:
  // Opens for direct I/O, or for buffered I/O if the file system refuses that.
  absl::StatusOr<Descriptor> OpenDirect(const std::string& path, int flags);
  absl::Status Fill(const std::string& path, uint64_t size);

  const uint32_t depth_;
  FillMeter* const fill_meter_;  // may be null
  std::unique_ptr<IoQueue> queue_;
  std::atomic<bool> said_buffered_{false};
};

absl::Status RealDisk::CreateFolder(const std::string& path) { return eps::CreateFolder(path); }

absl::StatusOr<std::vector<std::string>> RealDisk::List(const std::string& path) {
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) return Errno(path, "list", errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  const int error = errno;
  closedir(folder);
  if (error != 0) return Errno(path, "list", error);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<Descriptor> RealDisk::OpenDirect(const std::string& path, int flags) {
  Descriptor direct(open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0666));
  if (direct.ok()) return direct;
  if (errno != EINVAL) return Errno(path, "open", errno);
  // The refused call may have created the file, so drop O_EXCL.
  Descriptor buffered(open(path.c_str(), (flags & ~O_EXCL) | O_CLOEXEC, 0666));
  if (!buffered.ok()) return Errno(path, "open", errno);
  if (!said_buffered_.exchange(true)) {
    EPS_LOG_WARN("storage: " << path << ": the file system has no direct I/O (O_DIRECT: "
                             << std::strerror(EINVAL) << "); it goes through the page cache");
  }
  return buffered;
}

absl::Status RealDisk::CreateFile(const std::string& path, uint64_t size) {
  EPS_CHECK_MSG(size % kDiskBlock == 0, path << ": " << size << " bytes are not whole blocks");
  struct stat found {};
  if (stat(path.c_str(), &found) == 0) return Errno(path, "create", EEXIST);
  if (errno != ENOENT) return Errno(path, "stat", errno);
  const std::string folder = FolderOf(path);
  EPS_ASSIGN_OR_RETURN(const uint64_t free_bytes, FreeBytes(folder));
  if (size > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": ", size - free_bytes,
                                                     " bytes are missing: ", size, " wanted, ",
                                                     free_bytes, " free in ", folder));
  }
  const absl::Status filled = Fill(path, size);
  if (!filled.ok()) {
    unlink(path.c_str());
    return filled;
  }
  return SyncPath(folder);
}

absl::Status RealDisk::Fill(const std::string& path, uint64_t size) {
  EPS_ASSIGN_OR_RETURN(Descriptor fd, OpenDirect(path, O_RDWR | O_CREAT | O_EXCL));
  const auto bytes = static_cast<off_t>(size);
  // Writes that extend a file run one at a time, so set the size first. Not every file system can
  // reserve the space too.
  if (size > 0 && fallocate(fd.get(), 0, 0, bytes) != 0) {
    if (errno != EOPNOTSUPP) return Errno(path, absl::StrCat("reserve ", size, " bytes"), errno);
    if (ftruncate(fd.get(), bytes) != 0) return Errno(path, "set the size", errno);
  }
  RealFile file(path, std::move(fd), size, FileIdentity(), queue_.get());
  EPS_RETURN_IF_ERROR(FillWithZeros(&file, depth_, fill_meter_));
  return SyncBlocking(&file);
}

absl::StatusOr<std::unique_ptr<AsyncFile>> RealDisk::Open(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(Descriptor fd, OpenDirect(path, O_RDWR));
  struct statx found {};
  if (statx(fd.get(), "", AT_EMPTY_PATH, STATX_SIZE | STATX_INO | STATX_BTIME, &found) != 0) {
    return Errno(path, "stat", errno);
  }
  FileIdentity identity;
  identity.number = found.stx_ino;
  if ((found.stx_mask & STATX_BTIME) != 0) {
    identity.born =
        static_cast<uint64_t>(found.stx_btime.tv_sec) * 1'000'000'000 + found.stx_btime.tv_nsec;
  }
  return std::unique_ptr<AsyncFile>(
      std::make_unique<RealFile>(path, std::move(fd), found.stx_size, identity, queue_.get()));
}

absl::Status RealDisk::Remove(const std::string& path) {
  if (std::remove(path.c_str()) != 0) return Errno(path, "remove", errno);
  return SyncPath(FolderOf(path));
}

absl::Status RealDisk::Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    return Errno(from, absl::StrCat("rename to ", to), errno);
  }
  EPS_RETURN_IF_ERROR(SyncPath(FolderOf(to)));
  return FolderOf(from) == FolderOf(to) ? absl::OkStatus() : SyncPath(FolderOf(from));
}

absl::StatusOr<std::unique_ptr<Disk::Lock>> RealDisk::TakeLock(const std::string& path) {
  Descriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.ok()) return Errno(path, "open", errno);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
    return std::unique_ptr<Lock>(std::make_unique<RealLock>(std::move(fd)));
  }
  if (errno != EWOULDBLOCK) return Errno(path, "lock", errno);
  return absl::FailedPreconditionError(absl::StrCat(path, ": another process holds this lock"));
}

absl::StatusOr<uint64_t> RealDisk::FreeBytes(const std::string& path) {
  struct statvfs found {};
  if (statvfs(path.c_str(), &found) != 0) return Errno(path, "ask for free space", errno);
  return uint64_t{found.f_bavail} * found.f_frsize;
}

}  // namespace

std::unique_ptr<Disk> NewRealDisk(const DiskOptions& options) {
  return std::make_unique<RealDisk>(options);
}

}  // namespace eps
