#include "storage/log/contribution_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "storage/log/log_batch.h"

namespace eps {

absl::StatusOr<std::unique_ptr<ContributionLog>> ContributionLog::Open(
    Disk* blocking_disk, Disk* disk, const std::string& folder, const ExtentIdentity& identity,
    const LogRoom& room, bool live, Executor* executor, MemoryAccount* account, Posted posted) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<LogRing> ring,
                       LogRing::Open(blocking_disk, disk, folder, identity, room, live, executor,
                                     account, std::move(posted)));
  return std::unique_ptr<ContributionLog>(new ContributionLog(std::move(ring)));
}

ContributionLog::ContributionLog(std::unique_ptr<LogRing> ring)
    : ring_(std::move(ring)), reader_(ring_.get()) {
  filled_.batch = LogBatchWriter(ring_->buffer(0));
  written_.batch = LogBatchWriter(ring_->buffer(1));
}

void ContributionLog::Start(const LogId& id) {
  MutexLock lock(&mu_);
  EPS_CHECK_MSG(!filling_ && !writing_ && waiting_.empty(),
                "the log starts again while it is written");
  id_ = id;
  begin_ = end_ = 0;
  batches_.clear();
  reading_ = false;
  holds_ = failure_.ok();
}

void ContributionLog::Resume() {
  MutexLock lock(&mu_);
  holds_ = false;
  MaybeFill();
}

void ContributionLog::Append(LogEntry entry, Done done) {
  MutexLock lock(&mu_);
  if (reading_) reading_ = holds_ = false;
  waiting_.push_back(Pending{std::move(entry), std::move(done)});
  MaybeFill();
}

void ContributionLog::Flush(Done done) {
  MutexLock lock(&mu_);
  if (!reading_ && waiting_.empty() && !filling_ && !writing_) {
    ring_->executor()->Post([status = failure_, done = std::move(done)] { done(status); });
    return;
  }
  waiting_.push_back(Pending{std::nullopt, std::move(done)});
  MaybeFill();
}

void ContributionLog::CancelFlushes(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (!reading_ || filling_) return;  // a task that is posted ends them
  for (Pending& flush : waiting_) {
    ring_->executor()->Post([why, done = std::move(flush.done)] { done(why); });
  }
  waiting_.clear();
}

void ContributionLog::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (failure_.ok()) failure_ = status;
  reading_ = holds_ = false;
  MaybeFill();
}

void ContributionLog::MaybeFill() {
  if (holds_ || filling_ || waiting_.empty()) return;
  // EndBatch makes room.
  if (writing_ && !Fits(waiting_.front(), filled_.batch.bytes())) return;
  filling_ = true;
  ring_->executor()->Post([this] { Fill(); });
}

// Copies what waits, and what arrives meanwhile, into a batch. Writes it unless another one is in
// flight, whose end then calls again.
void ContributionLog::Fill() {
  for (;;) {
    std::vector<Pending> taken;
    {
      MutexLock lock(&mu_);
      taken = TakeWaiting();
      if (taken.empty()) {
        filling_ = false;
        if (writing_) return;
        writing_ = true;
        std::swap(filled_, written_);
        break;
      }
    }
    for (Pending& pending : taken) {
      if (pending.entry.has_value()) {
        filled_.batch.Add(*pending.entry);
        filled_.last_step = std::max(filled_.last_step, pending.entry->step);
      }
      filled_.done.push_back(std::move(pending.done));
    }
  }
  WriteBatch();
}

bool ContributionLog::Fits(const Pending& pending, uint64_t bytes) const {
  return !pending.entry.has_value() ||
         bytes + LogEntryBytes(*pending.entry) <= ring_->batch_bytes();
}

std::vector<ContributionLog::Pending> ContributionLog::TakeWaiting() {
  std::vector<Pending> taken;
  uint64_t bytes = filled_.batch.bytes();
  while (failure_.ok() && !waiting_.empty() && Fits(waiting_.front(), bytes)) {
    Pending& next = waiting_.front();
    if (next.entry.has_value()) bytes += LogEntryBytes(*next.entry);
    taken.push_back(std::move(next));
    waiting_.pop_front();
  }
  if (failure_.ok() && taken.empty() && filled_.done.empty() && !waiting_.empty()) {
    failure_ = absl::InternalError(absl::StrCat(ring_->file()->path(), ": an entry of ",
                                                LogEntryBytes(*waiting_.front().entry),
                                                " bytes, and room for ", ring_->batch_bytes()));
  }
  return taken;
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
  LogBatchHead head = written_.batch.head();
  absl::StatusOr<uint64_t> position = uint64_t{0};
  {
    MutexLock lock(&mu_);
    if (!failure_.ok()) position = failure_;
    if (position.ok() && head.entries > 0) position = Place(head.padded());
    head.term = id_.term.value();
    head.incarnation = id_.incarnation;
    head.after = end_;
  }
  if (!position.ok()) return EndBatch(position.status());
  if (head.entries == 0) return EndBatch(absl::OkStatus());
  head.position = *position;
  const uint64_t end = head.position + head.padded();
  ring_->file()->Write(
      ring_->OffsetOf(head.position), written_.batch.Seal(head),
      ring_->OnExecutor([this, position = head.position, end](absl::Status status) {
        if (!status.ok()) return EndBatch(status);
        ring_->file()->Sync(ring_->OnExecutor([this, position, end](absl::Status synced) {
          if (synced.ok()) {
            MutexLock lock(&mu_);
            batches_.push_back({position, written_.last_step});
            end_ = end;
          }
          EndBatch(synced);
        }));
      }));
}

// Completes the batch in flight, then continues with the next one. Nothing else completes entries,
// so the log lives until the last entry or flush has completed.
void ContributionLog::EndBatch(const absl::Status& status) {
  std::vector<Done> ended = std::exchange(written_.done, {});
  written_.batch.Clear();
  written_.last_step = Step();
  bool last = false;
  {
    MutexLock lock(&mu_);
    if (!status.ok() && failure_.ok()) failure_ = status;
    if (!status.ok() && !filling_) {
      for (Done& done : std::exchange(filled_.done, {})) ended.push_back(std::move(done));
      for (Pending& pending : waiting_) ended.push_back(std::move(pending.done));
      waiting_.clear();
    }
    last = !filling_ && filled_.done.empty() && waiting_.empty();
    if (last) writing_ = false;
  }
  for (const Done& done : ended) done(status);
  if (last) return;  // the last completion may have destroyed the log
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (filling_) return;
    filling_ = true;
  }
  Fill();
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
