#ifndef EPS_STORAGE_DISK_IO_QUEUE_H_
#define EPS_STORAGE_DISK_IO_QUEUE_H_

// How real files move bytes: requests in, completions out, a bounded number of them at the kernel.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/disk/disk.h"

namespace eps {

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
  uint8_t* data = nullptr;  // only read from if kWrite
  uint64_t size = 0;
  absl::Status status;
  AsyncFile::Done done;
  uint64_t moved = 0;  // bytes that were moved so far

  // What the kernel is asked for next: all that is left, up to what one call may move.
  uint64_t next_size() const;
  // Takes the outcome of a call, bytes moved or a negative errno. True: the request is done.
  bool Take(int64_t result);
};

// Thread-safe. Completes each request once, on a thread of its own. The destructor REQUIRES that
// all of them have completed.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Never blocks for the device: what exceeds the depth waits in line.
  virtual void Start(std::unique_ptr<IoRequest> request) = 0;
};

// Unavailable with the reason where the kernel refuses io_uring.
absl::StatusOr<std::unique_ptr<IoQueue>> NewUringQueue(uint32_t depth);
// `depth` threads, but at most 8, that call pread, pwrite and fdatasync.
std::unique_ptr<IoQueue> NewThreadQueue(uint32_t depth);

}  // namespace eps

#endif  // EPS_STORAGE_DISK_IO_QUEUE_H_
