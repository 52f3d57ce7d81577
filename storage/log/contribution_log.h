#ifndef EPS_STORAGE_LOG_CONTRIBUTION_LOG_H_
#define EPS_STORAGE_LOG_CONTRIBUTION_LOG_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/cuts/cut.h"
#include "storage/log/log_batch.h"
#include "storage/log/log_reader.h"
#include "storage/log/log_ring.h"

namespace eps {

// The contributions that a shard received since its last cut, in the order in which it counted
// them, in a ring of batches (docs/formats/log.md). The log does not read the content of an entry.
//
// Thread-safe, but Start and Rewind REQUIRE that nothing is in flight, and ReadNext must be called
// one at a time. Completions run on the executor, in call order. Entries become durable in order:
// those that arrive while a batch is written share the next one, which is filled meanwhile. Destroy
// it only after all has completed.
class ContributionLog {
 public:
  using Done = LogRing::Done;
  using Page = std::function<void(absl::StatusOr<std::vector<LogEntry>>)>;
  using Posted = LogRing::Posted;

  // As LogRing::Open.
  static absl::StatusOr<std::unique_ptr<ContributionLog>> Open(
      Disk* blocking_disk, Disk* disk, const std::string& folder, const ExtentIdentity& identity,
      const LogRoom& room, bool live, Executor* executor, MemoryAccount* account, Posted posted);

  // As those of LogRing.
  static uint64_t FileBytes(const LogRoom& room) { return LogRing::FileBytes(room); }
  bool kept() const { return ring_->kept(); }
  uint64_t steps() const { return ring_->steps(); }

  // Empties the log; `id` distinguishes its entries from all that were written before. Appends wait
  // for Resume: until then nothing shows that the log exists.
  void Start(const LogId& id) EPS_EXCLUDES(mu_);
  void Resume() EPS_EXCLUDES(mu_);
  // Calls `done` after the entry and all before it are synced. Returns Internal if the ring is full
  // of entries that were not released, or the error of the device. After an error the log writes
  // nothing.
  void Append(LogEntry entry, Done done) EPS_EXCLUDES(mu_);
  // Calls `done` after all that was appended so far is synced; while the log is read, after the
  // first entry that follows is.
  void Flush(Done done) EPS_EXCLUDES(mu_);
  // Ends the flushes of a log that is read with `why`. Call it if nothing will be appended.
  void CancelFlushes(const absl::Status& why) EPS_EXCLUDES(mu_);
  // Treats `status` as the error of the next write.
  void Fail(const absl::Status& status) EPS_EXCLUDES(mu_);

  // Returns the position from which the entries of steps after `step` can be read.
  uint64_t PositionBehind(Step step) EPS_EXCLUDES(mu_);
  // Frees all before that position.
  void Release(uint64_t position) EPS_EXCLUDES(mu_);

  // Begins to read the entries of `id` from `position` on; the next Append follows the last one
  // that was read.
  void Rewind(const LogId& id, uint64_t position) EPS_EXCLUDES(mu_);
  // Delivers the next entries, a batch at a time; none at the end. A last batch that is not whole
  // was never acknowledged and is left out; one that others follow is DataLoss with file and
  // offset. The entries are durable; payloads and residuals are charged to the account.
  void ReadNext(Page done) EPS_EXCLUDES(mu_);

 private:
  // An entry or a flush that waits for a sync.
  struct Pending {
    std::optional<LogEntry> entry;  // nullopt for a flush
    Done done;
  };
  // A batch in memory.
  struct Draft {
    LogBatchWriter batch;
    Step last_step;
    std::vector<Done> done;  // of its entries, and of flushes
  };
  // A batch in the ring.
  struct Batch {
    uint64_t position = 0;
    Step last_step;
  };

  explicit ContributionLog(std::unique_ptr<LogRing> ring);

  // One task at a time fills, and one batch at a time is written. The functions are in call order.
  void MaybeFill() EPS_REQUIRES(mu_);
  void Fill() EPS_EXCLUDES(mu_);
  bool Fits(const Pending& pending, uint64_t bytes) const;
  // Returns what waits and fits into the batch that is filled.
  std::vector<Pending> TakeWaiting() EPS_REQUIRES(mu_);
  void WriteBatch() EPS_EXCLUDES(mu_);
  // Returns the position of the next batch.
  absl::StatusOr<uint64_t> Place(uint64_t bytes) const EPS_REQUIRES(mu_);
  void EndBatch(const absl::Status& status) EPS_EXCLUDES(mu_);

  const std::unique_ptr<LogRing> ring_;
  LogReader reader_;  // of the caller of Rewind and ReadNext
  Draft filled_;      // of the task that fills; while none does, of the holder of mu_
  Draft written_;     // the batch in flight, of the task that writes it

  mutable Mutex mu_;
  LogId id_ EPS_GUARDED_BY(mu_);
  absl::Status failure_ EPS_GUARDED_BY(mu_);
  bool holds_ EPS_GUARDED_BY(mu_) = true;     // until Resume
  bool reading_ EPS_GUARDED_BY(mu_) = false;  // from Rewind to the first Append
  bool filling_ EPS_GUARDED_BY(mu_) = false;  // a task fills, or is posted
  bool writing_ EPS_GUARDED_BY(mu_) = false;  // a batch is in flight
  uint64_t begin_ EPS_GUARDED_BY(mu_) = 0;    // position of the first byte that is needed
  uint64_t end_ EPS_GUARDED_BY(mu_) = 0;      // position after the last batch
  std::deque<Pending> waiting_ EPS_GUARDED_BY(mu_);
  std::deque<Batch> batches_ EPS_GUARDED_BY(mu_);  // not released
};

}  // namespace eps

#endif  // EPS_STORAGE_LOG_CONTRIBUTION_LOG_H_
