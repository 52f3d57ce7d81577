#include "storage/log/contribution_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_batch.h"
#include "storage/log/log_format.h"

namespace eps {

namespace format = log_format;

absl::StatusOr<std::unique_ptr<ContributionLog>> ContributionLog::Open(
    Disk* blocking_disk, Disk* disk, const std::string& folder, const ExtentIdentity& identity,
    const LogRoom& room, bool live, Executor* executor, MemoryAccount* account, Posted posted) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<LogRing> ring,
                       LogRing::Open(blocking_disk, disk, folder, identity, room, live, executor,
                                     account, std::move(posted)));
  return std::unique_ptr<ContributionLog>(new ContributionLog(std::move(ring)));
}

void ContributionLog::Start(const LogId& id) {
  MutexLock lock(&mu_);
  EPS_CHECK_MSG(!writing_ && waiting_.empty(), "the log starts again while it is written");
  id_ = id;
  begin_ = end_ = 0;
  batches_.clear();
  reading_ = false;
  holds_ = failure_.ok();
}

void ContributionLog::Resume() {
  MutexLock lock(&mu_);
  holds_ = false;
  MaybeWrite();
}

void ContributionLog::Append(LogEntry entry, Done done) {
  MutexLock lock(&mu_);
  if (reading_) reading_ = holds_ = false;
  waiting_.push_back(Pending{std::move(entry), std::move(done)});
  MaybeWrite();
}

void ContributionLog::Flush(Done done) {
  MutexLock lock(&mu_);
  if (!reading_ && waiting_.empty() && !writing_) {
    ring_->executor()->Post([status = failure_, done = std::move(done)] { done(status); });
    return;
  }
  waiting_.push_back(Pending{std::nullopt, std::move(done)});
  MaybeWrite();
}

void ContributionLog::CancelFlushes(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (!reading_) return;
  for (Pending& flush : waiting_) {
    ring_->executor()->Post([why, done = std::move(flush.done)] { done(why); });
  }
  waiting_.clear();
}

void ContributionLog::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (failure_.ok()) failure_ = status;
  reading_ = holds_ = false;
  MaybeWrite();
}

void ContributionLog::MaybeWrite() {
  if (holds_ || writing_ || waiting_.empty()) return;
  writing_ = true;
  ring_->executor()->Post([this] { WriteBatch(); });
}

absl::StatusOr<uint64_t> ContributionLog::Place(uint64_t bytes) const {
  const uint64_t left = ring_->LeftOfLap(end_);
  const uint64_t position = bytes <= left ? end_ : end_ + left;
  if (position + bytes <= begin_ + ring_->ring_bytes()) return position;
  return absl::InternalError(
      absl::StrCat(ring_->file()->path(), ": the log of ", ring_->ring_bytes(),
                   " bytes is full of contributions that no cut holds yet; lower "
                   "storage.cut_steps on all servers"));
}

void ContributionLog::WriteBatch() {
  LogBatchHead head;
  Step last_step;
  absl::StatusOr<uint64_t> position = uint64_t{0};
  {
    MutexLock lock(&mu_);
    if (!failure_.ok()) position = failure_;
    head.bytes = format::batch::kHeadBytes;
    while (!waiting_.empty()) {
      if (const std::optional<LogEntry>& entry = waiting_.front().entry; entry.has_value()) {
        if (head.bytes + LogEntryBytes(*entry) > ring_->batch_bytes()) break;
        head.bytes += LogEntryBytes(*entry);
        last_step = std::max(last_step, entry->step);
        ++head.entries;
      }
      in_batch_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    if (in_batch_.empty()) {
      position = absl::InternalError(absl::StrCat(ring_->file()->path(), ": an entry of ",
                                                  LogEntryBytes(*waiting_.front().entry),
                                                  " bytes, and room for ", ring_->batch_bytes()));
    }
    if (position.ok() && head.entries > 0) position = Place(head.padded());
    head.term = id_.term.value();
    head.incarnation = id_.incarnation;
    head.after = end_;
  }
  if (!position.ok()) return EndBatch(position.status());
  if (head.entries == 0) return EndBatch(absl::OkStatus());
  head.position = *position;
  uint8_t* at = ring_->buffer() + format::batch::kHeadBytes;
  for (const Pending& pending : in_batch_) {
    if (pending.entry.has_value()) at = StoreLogEntry(*pending.entry, at);
  }
  head.content_crc =
      CrcOf(ring_->buffer() + format::batch::kHeadBytes, head.bytes - format::batch::kHeadBytes);
  head.Store(ring_->buffer());
  std::memset(at, 0, head.padded() - head.bytes);
  const uint64_t end = head.position + head.padded();
  ring_->file()->Write(
      ring_->OffsetOf(head.position), absl::MakeConstSpan(ring_->buffer(), head.padded()),
      ring_->OnExecutor([this, batch = Batch{head.position, last_step}, end](absl::Status status) {
        if (!status.ok()) return EndBatch(status);
        ring_->file()->Sync(ring_->OnExecutor([this, batch, end](absl::Status synced) {
          if (synced.ok()) {
            MutexLock lock(&mu_);
            batches_.push_back(batch);
            end_ = end;
          }
          EndBatch(synced);
        }));
      }));
}

void ContributionLog::EndBatch(const absl::Status& status) {
  std::deque<Pending> ended;
  {
    MutexLock lock(&mu_);
    ended.swap(in_batch_);
    if (!status.ok()) {
      if (failure_.ok()) failure_ = status;
      for (Pending& pending : waiting_) ended.push_back(std::move(pending));
      waiting_.clear();
    }
    writing_ = false;
    MaybeWrite();
  }
  // The last completion may destroy the log.
  for (Pending& pending : ended) {
    const Done done = std::move(pending.done);
    pending.entry.reset();
    done(status);
  }
}

uint64_t ContributionLog::PositionBehind(Step step) {
  MutexLock lock(&mu_);
  for (const Batch& batch : batches_) {
    if (step < batch.last_step) return batch.position;
  }
  return end_;
}

void ContributionLog::Release(uint64_t position) {
  MutexLock lock(&mu_);
  begin_ = std::max(begin_, position);
  while (!batches_.empty() && batches_.front().position < begin_) batches_.pop_front();
}

void ContributionLog::Rewind(const LogId& id, uint64_t position) {
  Start(id);
  reader_.Rewind(id, position);
  MutexLock lock(&mu_);
  begin_ = end_ = position;
  reading_ = true;
}

void ContributionLog::ReadNext(Page done) {
  reader_.ReadNext([this, done = std::move(done)](absl::StatusOr<FoundBatch> found) {
    if (!found.ok()) return done(found.status());
    if (!found->entries.empty()) {
      MutexLock lock(&mu_);
      batches_.push_back({found->position, found->last_step});
      end_ = found->end;
    }
    done(std::move(found->entries));
  });
}

}  // namespace eps
