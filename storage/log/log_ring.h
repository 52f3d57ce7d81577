#ifndef EPS_STORAGE_LOG_LOG_RING_H_
#define EPS_STORAGE_LOG_LOG_RING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"
#include "storage/log/log_room.h"

namespace eps {

// The file of a contribution log: a header and a preallocated ring of batches, with memory for two
// batches (docs/formats/log.md). A position counts the bytes of the ring, all earlier laps
// included.
//
// Immutable but for the two buffers, which their one user at a time, the writer or the reader,
// fills.
class LogRing {
 public:
  using Done = std::function<void(absl::Status)>;
  // Turns `then` into a completion for the disk that runs it on the executor.
  using Posted = std::function<AsyncFile::Done(Done then)>;

  // Blocking. Opens the log in `folder`, or creates one with that room, durably and whole: a crash
  // at any time leaves the log or none. Keeps a log that is there and has this identity if it is
  // `live`, or if it is not smaller; else replaces it. Also replaces a copy: two processes must not
  // continue one log.
  // Returns DataLoss if the log is live and its header is damaged; ResourceExhausted with the
  // missing bytes of disk or of memory. Disks, executor and account are borrowed; the memory of two
  // batches is charged as scratch.
  static absl::StatusOr<std::unique_ptr<LogRing>> Open(
      Disk* blocking_disk, Disk* disk, const std::string& folder, const ExtentIdentity& identity,
      const LogRoom& room, bool live, Executor* executor, MemoryAccount* account, Posted posted);
  ~LogRing();
  LogRing(const LogRing&) = delete;
  LogRing& operator=(const LogRing&) = delete;

  // Returns the size of the file of a log with that room.
  static uint64_t FileBytes(const LogRoom& room);

  // Whether Open found a live log and kept it.
  bool kept() const { return kept_; }
  // The number of steps between two cuts for which there is room.
  uint64_t steps() const { return steps_; }
  uint64_t ring_bytes() const { return ring_bytes_; }
  uint64_t batch_bytes() const { return batch_bytes_; }  // of the largest batch

  // Returns the offset of a position in the file.
  uint64_t OffsetOf(uint64_t position) const;
  // Returns the bytes from a position to the end of its lap.
  uint64_t LeftOfLap(uint64_t position) const { return ring_bytes_ - position % ring_bytes_; }
  // Memory for batch_bytes(); `which` is 0 or 1.
  uint8_t* buffer(uint32_t which) const {
    return reinterpret_cast<uint8_t*>(memory_->floats()) + which * batch_bytes_;
  }

  AsyncFile* file() const { return file_.get(); }
  Executor* executor() const { return executor_; }
  MemoryAccount* account() const { return account_; }
  AsyncFile::Done OnExecutor(Done then) const { return posted_(std::move(then)); }

  // Returns DataLoss that names the file, the offset of the batch at `position`, and the remedy.
  absl::Status Damaged(uint64_t position, absl::string_view what) const;

 private:
  LogRing(std::unique_ptr<AsyncFile> file, uint64_t ring_bytes, uint64_t batch_bytes,
          uint64_t steps, bool kept, std::unique_ptr<StateArena> memory, Executor* executor,
          MemoryAccount* account, Posted posted);

  const std::unique_ptr<AsyncFile> file_;
  const uint64_t ring_bytes_;
  const uint64_t batch_bytes_;
  const uint64_t steps_;
  const bool kept_;
  const std::unique_ptr<StateArena> memory_;
  Executor* const executor_;
  MemoryAccount* const account_;
  const Posted posted_;
};

}  // namespace eps

#endif  // EPS_STORAGE_LOG_LOG_RING_H_
