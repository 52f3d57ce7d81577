#ifndef EPS_STORAGE_LOG_CONTRIBUTION_LOG_H_
#define EPS_STORAGE_LOG_CONTRIBUTION_LOG_H_

// What a shard was told since its last cut, in the order in which it counted: a ring in one
// preallocated file (docs/formats/log.md). What is in it is not looked into here.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "storage/cuts/cut.h"
#include "storage/disk/disk.h"
#include "storage/cuts/extents.h"
#include "storage/log/log_room.h"
#include "storage/disk/state_arena.h"

namespace eps {

// Thread-safe, but Start and Rewind REQUIRE that nothing is under way, and ReadNext is called one
// at a time. Completions come on the executor. Entries become durable in order: those that come
// while a batch is being written share the next one. REQUIRES that all has completed when it ends.
class ContributionLog {
 public:
  using Done = std::function<void(absl::Status)>;
  using Page = std::function<void(absl::StatusOr<std::vector<LogEntry>>)>;
  // Makes of `then` a completion for the disk that runs it on the executor.
  using Posted = std::function<AsyncFile::Done(Done then)>;

  // Blocking. Opens the log in `folder`, or makes one with that room, durably. One that is there
  // and fits the identity is kept as it is if `live`, or if it is not smaller; else it gives way.
  // So does a copy: two processes must not go on with one log.
  // DataLoss if it is live and its header damaged; ResourceExhausted with the bytes of disk or of
  // memory that are missing. Disks, executor and account are borrowed; one batch's memory is
  // charged as scratch.
  static absl::StatusOr<std::unique_ptr<ContributionLog>> Open(
      Disk* blocking_disk, Disk* disk, const std::string& folder, const ExtentIdentity& identity,
      const LogRoom& room, bool live, Executor* executor, MemoryAccount* account, Posted posted);
  ~ContributionLog();

  // Of such a log's file.
  static uint64_t FileBytes(const LogRoom& room);
  // A live one was there.
  bool kept() const { return kept_; }
  // Steps between two cuts for which there is room.
  uint64_t steps() const { return steps_; }

  // Empties the log; entries are told apart by `id` from all that were written before. Appends wait
  // for Resume: until then nothing says that the log exists.
  void Start(const LogId& id) EPS_EXCLUDES(mu_);
  void Resume() EPS_EXCLUDES(mu_);
  // `done` when the entry and all before it are synced. Internal if the ring is full of entries
  // that were not released, or of the device. After an error nothing is written any more.
  void Append(LogEntry entry, Done done) EPS_EXCLUDES(mu_);
  // `done` when all that was appended so far is synced; of a log that is being read, when the first
  // entry behind it is.
  void Flush(Done done) EPS_EXCLUDES(mu_);
  // Flushes of a log that is being read end with `why`: nothing will be appended.
  void CancelFlushes(const absl::Status& why) EPS_EXCLUDES(mu_);
  // As if the next write had that error.
  void Fail(const absl::Status& status) EPS_EXCLUDES(mu_);

  // From where the entries of later steps than `step` can be read.
  uint64_t PositionBehind(Step step) EPS_EXCLUDES(mu_);
  // Nothing before that position is needed any more.
  void Release(uint64_t position) EPS_EXCLUDES(mu_);

  // Begins to read what is there of `id` from `position` on; the next Append goes behind it.
  void Rewind(const LogId& id, uint64_t position) EPS_EXCLUDES(mu_);
  // The next entries, a batch at a time; none: that was the end. A batch at the end that is not
  // whole was never acknowledged and is left out; one that others follow is DataLoss with file and
  // offset. Entries are durable when they come; payloads and residuals are charged to the account.
  void ReadNext(Page done) EPS_EXCLUDES(mu_);

 private:
  struct Pending {
    std::optional<LogEntry> entry;  // nullopt: a flush
    Done done;
  };
  struct Batch {
    uint64_t position = 0;
    Step last_step;
  };
  struct Head;

  ContributionLog(std::unique_ptr<AsyncFile> file, uint64_t ring_bytes, uint64_t batch_bytes,
                  uint64_t steps, bool kept, std::unique_ptr<StateArena> memory, Executor* executor,
                  MemoryAccount* account, Posted posted);

  uint64_t OffsetOf(uint64_t position) const;
  uint64_t LeftOfLap(uint64_t position) const { return ring_bytes_ - position % ring_bytes_; }
  uint8_t* buffer() const;

  // ---- Writing.
  void MaybeWrite() EPS_REQUIRES(mu_);
  void WriteBatch() EPS_EXCLUDES(mu_);
  absl::StatusOr<uint64_t> Place(uint64_t bytes) const EPS_REQUIRES(mu_);
  void EndBatch(const absl::Status& status) EPS_EXCLUDES(mu_);

  // ---- Reading: one at a time, and nothing is written meanwhile.
  void Load(uint64_t position, Done then);
  bool HasWindow(uint64_t position, uint64_t bytes) const;
  bool HeadAt(uint64_t position, Head* head) const EPS_EXCLUDES(mu_);
  void ReadBatch(Page done) EPS_EXCLUDES(mu_);
  void ReadLapStart(Page done) EPS_EXCLUDES(mu_);
  void EndReading(Page done) EPS_EXCLUDES(mu_);
  void CheckNone(uint64_t begin, uint64_t end, Done then) EPS_EXCLUDES(mu_);
  absl::StatusOr<std::vector<LogEntry>> Parse(const Head& head, const uint8_t* batch) const;
  absl::Status Damaged(uint64_t position, absl::string_view what) const;

  const std::unique_ptr<AsyncFile> file_;
  const uint64_t ring_bytes_;
  const uint64_t batch_bytes_;
  const uint64_t steps_;
  const bool kept_;
  const std::unique_ptr<StateArena> memory_;  // one batch on its way, or what was read ahead
  Executor* const executor_;
  MemoryAccount* const account_;
  const Posted posted_;

  mutable Mutex mu_;
  LogId id_ EPS_GUARDED_BY(mu_);
  absl::Status failure_ EPS_GUARDED_BY(mu_);
  bool holds_ EPS_GUARDED_BY(mu_) = true;     // until Resume
  bool reading_ EPS_GUARDED_BY(mu_) = false;  // from Rewind to the first Append
  bool writing_ EPS_GUARDED_BY(mu_) = false;  // a batch is on its way
  uint64_t begin_ EPS_GUARDED_BY(mu_) = 0;    // of what is needed
  uint64_t end_ EPS_GUARDED_BY(mu_) = 0;      // of what was written
  std::deque<Pending> waiting_ EPS_GUARDED_BY(mu_);
  std::deque<Batch> batches_ EPS_GUARDED_BY(mu_);  // not released

  std::deque<Pending> in_batch_;  // that is on its way; its own alone

  // The reader's alone: whether what is there is durable, what the buffer holds, where the next
  // batch may be, and behind what.
  bool settled_ = false;
  uint64_t window_ = 0;
  uint64_t window_bytes_ = 0;
  uint64_t first_ = 0;
  uint64_t at_ = 0;
  uint64_t after_ = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_LOG_CONTRIBUTION_LOG_H_
