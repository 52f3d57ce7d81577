#include "storage/log/log_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"

namespace eps {

namespace format = log_format;

void LogReader::Rewind(const LogId& id, uint64_t position) {
  id_ = id;
  first_ = at_ = after_ = position;
  window_bytes_ = 0;
  settled_ = false;
}

// Batches of a process that was killed may be readable and not yet durable. They must be durable
// before others learn what follows from them and before the log continues after them.
void LogReader::ReadNext(Done done) {
  if (settled_) return ring_->executor()->Post([this, done = std::move(done)] { ReadBatch(done); });
  settled_ = true;
  ring_->file()->Sync(ring_->OnExecutor([this, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status);
    ReadBatch(done);
  }));
}

void LogReader::Load(uint64_t position, LogRing::Done then) {
  const uint64_t bytes = std::min(ring_->batch_bytes(), ring_->LeftOfLap(position));
  ring_->file()->Read(
      ring_->OffsetOf(position), absl::MakeSpan(ring_->buffer(0), bytes),
      ring_->OnExecutor([this, position, bytes, then = std::move(then)](absl::Status status) {
        window_ = position;
        window_bytes_ = status.ok() ? bytes : 0;
        then(std::move(status));
      }));
}

bool LogReader::HasWindow(uint64_t position, uint64_t bytes) const {
  return position >= window_ && position + bytes <= window_ + window_bytes_;
}

bool LogReader::HeadAt(uint64_t position, LogBatchHead* head) const {
  return head->Load(ring_->buffer(0) + (position - window_)) && head->position == position &&
         head->term == id_.term.value() && head->incarnation == id_.incarnation;
}

void LogReader::ReadBatch(Done done) {
  if (!HasWindow(at_, format::kBlock)) {
    return Load(at_, [this, done](const absl::Status& status) {
      if (!status.ok()) return done(status);
      ReadBatch(done);
    });
  }
  LogBatchHead head;
  const bool begins = HeadAt(at_, &head) && (head.after == after_ || at_ == first_);
  const uint64_t most = std::min(ring_->batch_bytes(), ring_->LeftOfLap(at_));
  if (!begins || head.bytes < format::batch::kHeadBytes || head.padded() > most) {
    return ReadLapStart(done);
  }
  if (!HasWindow(at_, head.padded())) {
    return Load(at_, [this, done](const absl::Status& status) {
      if (!status.ok()) return done(status);
      ReadBatch(done);
    });
  }
  const uint8_t* const batch = ring_->buffer(0) + (at_ - window_);
  const uint64_t content = head.bytes - format::batch::kHeadBytes;
  if (CrcOf(batch + format::batch::kHeadBytes, content) != head.content_crc) {
    return ReadLapStart(done);
  }
  std::optional<std::vector<LogEntry>> entries = LoadLogEntries(head, batch, ring_->account());
  if (!entries.has_value()) {
    return done(ring_->Damaged(head.position, "its entries do not fill it"));
  }
  FoundBatch found;
  found.position = at_;
  found.end = at_ + head.padded();
  for (const LogEntry& entry : *entries) found.last_step = std::max(found.last_step, entry.step);
  found.entries = std::move(*entries);
  at_ = after_ = found.end;
  done(std::move(found));
}

// A batch that did not fit before the end of the lap lies at the beginning of the next one. A torn
// batch, after which it was written, may still lie where it would have been.
void LogReader::ReadLapStart(Done done) {
  const uint64_t lap = at_ + ring_->LeftOfLap(at_);
  if (at_ != after_ || at_ % ring_->ring_bytes() == 0) return EndReading(done);
  Load(lap, [this, lap, done](const absl::Status& status) {
    if (!status.ok()) return done(status);
    LogBatchHead head;
    if (HeadAt(lap, &head) && head.after == after_) {
      at_ = lap;
      return ReadBatch(done);
    }
    EndReading(done);
  });
}

// A torn batch is the last one, because the writer syncs a batch before it begins the next. So no
// batch may begin where one that is not whole would have ended, here or at the next lap's
// beginning.
void LogReader::EndReading(Done done) {
  const uint64_t lap = after_ + ring_->LeftOfLap(after_);
  const uint64_t most = ring_->batch_bytes() + format::kBlock;
  CheckNone(after_ + format::kBlock, std::min(after_ + most, lap),
            [this, lap, most, done](const absl::Status& status) {
              if (!status.ok()) return done(status);
              CheckNone(lap, lap + most, [done](const absl::Status& none) {
                if (!none.ok()) return done(none);
                done(FoundBatch());
              });
            });
}

void LogReader::CheckNone(uint64_t begin, uint64_t end, LogRing::Done then) {
  if (begin >= end) return then(absl::OkStatus());
  Load(begin, [this, begin, end, then = std::move(then)](const absl::Status& status) {
    if (!status.ok()) return then(status);
    LogBatchHead head;
    uint64_t at = begin;
    for (; at < end && HasWindow(at, format::kBlock); at += format::kBlock) {
      if (HeadAt(at, &head) && head.after > after_) {
        return then(ring_->Damaged(at_, "it is not whole, and later ones follow"));
      }
    }
    CheckNone(at, end, then);
  });
}

}  // namespace eps
