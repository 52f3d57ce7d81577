#ifndef EPS_STORAGE_DISK_DISK_H_
#define EPS_STORAGE_DISK_DISK_H_

// The seam to files. Everything durable goes through it, so that a test can cut the power between
// two sectors, fail the n-th call, or flip a bit (storage/testing/simulated_disk.h), and so that io_uring
// is one implementation among others.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

// Offsets, lengths and addresses of direct I/O are multiples of this.
inline constexpr size_t kDiskBlock = 4096;

// Which file it is: the same whenever it is opened and whatever its name; a copy has another one.
struct FileIdentity {
  uint64_t number = 0;  // of the inode
  uint64_t born = 0;    // nanoseconds since 1970; 0 where the file system does not know it

  friend bool operator==(const FileIdentity& a, const FileIdentity& b) {
    return a.number == b.number && a.born == b.born;
  }
};

// One open file. Thread-safe. Reads and writes complete by `done` once, on any thread, in any
// order, and never on the caller's stack; the memory must stay valid until then. A short transfer
// is finished by the implementation or completes with an error. Errors are Internal with file,
// operation, offset, length and errno; what lies past the end is OutOfRange.
class AsyncFile {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~AsyncFile() = default;  // REQUIRES that all operations have completed
  virtual void Read(uint64_t offset, absl::Span<uint8_t> into, Done done) = 0;
  virtual void Write(uint64_t offset, absl::Span<const uint8_t> from, Done done) = 0;
  // What was written by operations that completed before this call survives a power cut once it
  // completes. After an error nothing is known of what was written: the process has to end.
  virtual void Sync(Done done) = 0;
  virtual const std::string& path() const = 0;
  virtual uint64_t size() const = 0;
  virtual FileIdentity identity() const = 0;
};

// A folder tree. Thread-safe; calls block. Paths are absolute or relative to the process.
class Disk {
 public:
  // Held by one process; released when destroyed, or when the process dies.
  class Lock {
   public:
    virtual ~Lock() = default;
  };

  virtual ~Disk() = default;
  // Creates the folder and its parents, durably.
  virtual absl::Status CreateFolder(const std::string& path) = 0;
  // Names in the folder, sorted; NotFound.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // Creates a file of `size` bytes, every block of it written once, and syncs it and its folder:
  // later writes need neither space nor metadata. ResourceExhausted says how many bytes are missing
  // and where; the file is then gone again. AlreadyExists.
  virtual absl::Status CreateFile(const std::string& path, uint64_t size) = 0;
  // Opens an existing file for direct I/O where the file system allows it; NotFound.
  virtual absl::StatusOr<std::unique_ptr<AsyncFile>> Open(const std::string& path) = 0;
  // A file or an empty folder.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Moves a file over another one in the same folder, durably.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // FailedPrecondition if another process holds it.
  virtual absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& path) = 0;
  // Bytes that may still be written below the path.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& path) = 0;
};

// Blocking forms, for what is not on the way of a step.
absl::Status ReadBlocking(AsyncFile* file, uint64_t offset, absl::Span<uint8_t> into);
absl::Status WriteBlocking(AsyncFile* file, uint64_t offset, absl::Span<const uint8_t> from);
absl::Status SyncBlocking(AsyncFile* file);

struct DiskOptions {
  // Operations in flight; more wait in line.
  uint32_t queue_depth = 16;
  bool allow_io_uring = true;
};
// Real files: io_uring where the kernel allows it, else threads with pread and pwrite; O_DIRECT
// where the file system allows it. Each fallback is logged once, with its reason.
std::unique_ptr<Disk> NewRealDisk(const DiskOptions& options);

}  // namespace eps

#endif  // EPS_STORAGE_DISK_DISK_H_
