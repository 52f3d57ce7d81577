#ifndef EPS_STORAGE_DISK_IO_QUEUE_H_
#define EPS_STORAGE_DISK_IO_QUEUE_H_

// The queue of I/O requests to real files. It bounds the number of requests in the kernel.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/disk/disk.h"

namespace eps {

// One transfer or sync of a file.
struct IoRequest {
  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kSync,
    kFail,  // moves nothing; completes with `status`
  };

  Kind kind = Kind::kFail;
  int fd = -1;
  std::string path;  // for messages
  uint64_t offset = 0;
  uint8_t* data = nullptr;  // not changed by kWrite
  uint64_t size = 0;
  absl::Status status;
  AsyncFile::Done done;
  uint64_t moved = 0;  // bytes transferred so far

  // Returns the size of the next system call: all remaining bytes, up to the limit of one call.
  uint64_t next_size() const;
  // Applies the result of a system call: bytes transferred, or a negative errno. Returns true if
  // the request is complete.
  bool Take(int64_t result);
};

// Runs requests. Thread-safe. Completes each request once, on a thread of the queue. The destructor
// REQUIRES that all requests have completed.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Never waits for the device: requests beyond the depth are queued.
  virtual void Start(std::unique_ptr<IoRequest> request) = 0;
};

// Returns a queue over io_uring. Unavailable with the reason if the kernel refuses io_uring.
absl::StatusOr<std::unique_ptr<IoQueue>> NewUringQueue(uint32_t depth);
// Returns a queue of `depth` threads, at most 8, that call pread, pwrite and fdatasync.
std::unique_ptr<IoQueue> NewThreadQueue(uint32_t depth);

}  // namespace eps

#endif  // EPS_STORAGE_DISK_IO_QUEUE_H_
