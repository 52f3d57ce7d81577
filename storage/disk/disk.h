#ifndef EPS_STORAGE_DISK_DISK_H_
#define EPS_STORAGE_DISK_DISK_H_

// The interface to files. Everything durable goes through it, so that a test can cut the power
// between two sectors, fail the n-th call, or flip a bit (storage/testing/simulated_disk.h), and so
// that io_uring is one implementation among others.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

class FillMeter;

// Offsets, lengths and addresses of direct I/O are multiples of this.
inline constexpr size_t kDiskBlock = 4096;

// Identifies a file across opens and renames. A copy has another identity.
struct FileIdentity {
  uint64_t number = 0;  // of the inode
  uint64_t born = 0;    // nanoseconds since 1970; 0 if the file system does not record it

  friend bool operator==(const FileIdentity& a, const FileIdentity& b) {
    return a.number == b.number && a.born == b.born;
  }
};

// One open file. Thread-safe. Each read or write calls `done` once, on any thread, in any order,
// and never on the caller's stack; keep the memory valid until then. The implementation finishes a
// short transfer or completes it with an error. Errors name file, operation, offset, length and
// errno: Internal; ResourceExhausted if the disk is full; OutOfRange past the end of the file.
class AsyncFile {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~AsyncFile() = default;  // REQUIRES that all operations have completed
  virtual void Read(uint64_t offset, absl::Span<uint8_t> into, Done done) = 0;
  virtual void Write(uint64_t offset, absl::Span<const uint8_t> from, Done done) = 0;
  // Once this completes, the writes that completed before the call survive a power cut. End the
  // process after an error: the content of the file is then unknown.
  virtual void Sync(Done done) = 0;
  virtual const std::string& path() const = 0;
  virtual uint64_t size() const = 0;
  virtual FileIdentity identity() const = 0;
};

// A folder tree. Thread-safe; calls block. Relative paths start at the working directory.
class Disk {
 public:
  // A lock that one process holds until the destructor runs or the process dies.
  class Lock {
   public:
    virtual ~Lock() = default;
  };

  virtual ~Disk() = default;
  // Creates the folder and its parents, durably.
  virtual absl::Status CreateFolder(const std::string& path) = 0;
  // Returns the names in the folder, sorted. NotFound if there is no such folder.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // Creates a file of `size` bytes, writes every block once, and syncs the file and its folder, so
  // that later writes allocate neither space nor metadata. Logs its progress. If the disk is full,
  // removes the file and returns ResourceExhausted with the missing bytes and the place.
  // AlreadyExists if the file exists.
  virtual absl::Status CreateFile(const std::string& path, uint64_t size) = 0;
  // Opens an existing file, for direct I/O if the file system allows it. NotFound if there is none.
  virtual absl::StatusOr<std::unique_ptr<AsyncFile>> Open(const std::string& path) = 0;
  // Removes a file or an empty folder, durably.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Renames a file or a folder, durably; replaces an existing file of that name. The new place is
  // in an existing folder of the same file system.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Locks the file, which it creates if necessary. FailedPrecondition if another process holds the
  // lock.
  virtual absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& path) = 0;
  // Returns the free bytes of the file system that holds the path.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& path) = 0;
};

// Blocking forms, for code that no training step waits for.
absl::Status ReadBlocking(AsyncFile* file, uint64_t offset, absl::Span<uint8_t> into);
absl::Status WriteBlocking(AsyncFile* file, uint64_t offset, absl::Span<const uint8_t> from);
absl::Status SyncBlocking(AsyncFile* file);

// Takes a lock as Disk::TakeLock does, but waits for up to `patience` while another process holds
// it: a process that was just killed may do so for a moment.
absl::StatusOr<std::unique_ptr<Disk::Lock>> TakeLockWithin(Disk* disk, const std::string& path,
                                                           std::chrono::milliseconds patience);

// Returns a completion for `operations`, at least one. It calls `done` once all have completed,
// with the error of one of them if any failed.
AsyncFile::Done AfterAll(size_t operations, AsyncFile::Done done);

// The settings of NewRealDisk.
struct DiskOptions {
  // The most operations in flight; more wait in a queue.
  uint32_t queue_depth = 16;
  bool allow_io_uring = true;
  // Counts the bytes that CreateFile writes; borrowed.
  FillMeter* fill_meter_or_null = nullptr;
};
// Returns the real file system. It uses io_uring if the kernel allows it, otherwise threads with
// pread and pwrite; and O_DIRECT if the file system allows it. Logs each fallback that the system
// forces on it once, with its reason.
std::unique_ptr<Disk> NewRealDisk(const DiskOptions& options);

}  // namespace eps

#endif  // EPS_STORAGE_DISK_DISK_H_
