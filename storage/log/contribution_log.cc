#include "storage/log/contribution_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"

namespace eps {
namespace {

namespace format = log_format;

static_assert(format::kBlock == kDiskBlock);

// Entries that wait for a sync share it, up to this; more if one entry alone has more.
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;

uint64_t BytesOf(const LogEntry& entry) {
  return format::entry::kHeadBytes + entry.text.size() + entry.payload.size() +
         entry.residual.size();
}

uint64_t BatchBytes(const LogRoom& room) {
  return RoundUpTo(
      std::max(std::min(kBatchBytes, room.step_bytes),
               format::batch::kHeadBytes + format::entry::kHeadBytes + room.entry_bytes),
      format::kBlock);
}

// Between two cuts lie room.steps steps; until the second one is durable, as many again and the
// begin of one more. What does not fit before the end of a lap is left free.
uint64_t RingBytes(const LogRoom& room) {
  return RoundUpTo((2 * room.steps + 1) * room.step_bytes + 2 * BatchBytes(room), format::kBlock);
}

void FillHeader(const ExtentIdentity& identity, const FileIdentity& file, uint64_t ring_bytes,
                uint64_t batch_bytes, uint8_t* block) {
  namespace header = format::header;
  std::memset(block, 0, format::kBlock);
  StoreAt(block + header::kMagicAt, format::kHeaderMagic);
  StoreAt(block + header::kVersionAt, format::kVersion);
  StoreAt(block + header::kJobAt, identity.job.value());
  StoreAt(block + header::kShardAt, identity.shard);
  StoreAt(block + header::kShardsAt, identity.shards);
  StoreAt(block + header::kNonceAt, identity.nonce);
  StoreAt(block + header::kRingBytesAt, ring_bytes);
  StoreAt(block + header::kBatchBytesAt, batch_bytes);
  StoreAt(block + header::kFileNumberAt, file.number);
  StoreAt(block + header::kFileBornAt, file.born);
  StoreAt(block + header::kCrcAt, CrcOf(block, header::kCrcAt));
}

// What the header of a log that is there says, if it is whole and of that identity;
// FailedPrecondition if it is, in a file that was copied: the process whose memory the log stands
// for may go on with the other one.
absl::Status ReadHeader(Disk* disk, const std::string& path, const ExtentIdentity& identity,
                        uint8_t* blocks, uint64_t* ring_bytes, uint64_t* batch_bytes) {
  namespace header = format::header;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, disk->Open(path));
  uint8_t* const expected = blocks + format::kBlock;
  if (file->size() >= format::kBlock) {
    EPS_RETURN_IF_ERROR(ReadBlocking(file.get(), 0, absl::MakeSpan(blocks, format::kBlock)));
    *ring_bytes = LoadFrom<uint64_t>(blocks + header::kRingBytesAt);
    *batch_bytes = LoadFrom<uint64_t>(blocks + header::kBatchBytesAt);
    const FileIdentity told{LoadFrom<uint64_t>(blocks + header::kFileNumberAt),
                            LoadFrom<uint64_t>(blocks + header::kFileBornAt)};
    FillHeader(identity, told, *ring_bytes, *batch_bytes, expected);
    const bool fits = file->size() == format::kBlock + *ring_bytes && *batch_bytes > 0 &&
                      2 * *batch_bytes <= *ring_bytes && *batch_bytes % format::kBlock == 0 &&
                      *ring_bytes % format::kBlock == 0;
    if (fits && std::memcmp(blocks, expected, format::kBlock) == 0) {
      if (told == file->identity()) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat(
          path, ": was made as file ", told.number, ", born ", told.born, ", and is file ",
          file->identity().number, ", born ", file->identity().born, ": a copy"));
    }
  }
  return absl::DataLossError(absl::StrCat(
      path, ": the header at offset 0, or the size of ", file->size(),
      " bytes, is not that of this shard's log; remove the file to go back to the last cut"));
}

absl::Status CreateLog(Disk* disk, const std::string& folder, const std::string& path,
                       const ExtentIdentity& identity, const LogRoom& room, uint8_t* block) {
  EPS_ASSIGN_OR_RETURN(const uint64_t free_bytes, disk->FreeBytes(folder));
  const uint64_t wanted = ContributionLog::FileBytes(room);
  if (wanted > free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": the contributions of ", 2 * room.steps + 1, " steps want ", wanted,
                     " bytes, and ", free_bytes, " are free: ", wanted - free_bytes,
                     " are missing; free them, lower storage.cut_steps, or set storage.log=none"));
  }
  EPS_RETURN_IF_ERROR(disk->CreateFile(path, wanted));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, disk->Open(path));
  FillHeader(identity, file->identity(), RingBytes(room), BatchBytes(room), block);
  EPS_RETURN_IF_ERROR(WriteBlocking(file.get(), 0, absl::MakeConstSpan(block, format::kBlock)));
  return SyncBlocking(file.get());
}

}  // namespace

struct ContributionLog::Head {
  uint64_t term = 0;
  uint64_t incarnation = 0;
  uint64_t position = 0;
  uint64_t after = 0;
  uint64_t bytes = 0;
  uint32_t entries = 0;
  uint32_t content_crc = 0;

  uint64_t padded() const { return RoundUpTo(bytes, format::kBlock); }
  // False: no head of a batch is there.
  bool Load(const uint8_t* at) {
    namespace batch = format::batch;
    if (LoadFrom<uint64_t>(at + batch::kMagicAt) != format::kBatchMagic ||
        LoadFrom<uint32_t>(at + batch::kCrcAt) != CrcOf(at, batch::kCrcAt)) {
      return false;
    }
    term = LoadFrom<uint64_t>(at + batch::kTermAt);
    incarnation = LoadFrom<uint64_t>(at + batch::kIncarnationAt);
    position = LoadFrom<uint64_t>(at + batch::kPositionAt);
    after = LoadFrom<uint64_t>(at + batch::kAfterAt);
    bytes = LoadFrom<uint64_t>(at + batch::kBytesAt);
    entries = LoadFrom<uint32_t>(at + batch::kEntriesAt);
    content_crc = LoadFrom<uint32_t>(at + batch::kContentCrcAt);
    return true;
  }
  void Store(uint8_t* at) const {
    namespace batch = format::batch;
    std::memset(at, 0, batch::kHeadBytes);
    StoreAt(at + batch::kMagicAt, format::kBatchMagic);
    StoreAt(at + batch::kTermAt, term);
    StoreAt(at + batch::kIncarnationAt, incarnation);
    StoreAt(at + batch::kPositionAt, position);
    StoreAt(at + batch::kAfterAt, after);
    StoreAt(at + batch::kBytesAt, bytes);
    StoreAt(at + batch::kEntriesAt, entries);
    StoreAt(at + batch::kContentCrcAt, content_crc);
    StoreAt(at + batch::kCrcAt, CrcOf(at, batch::kCrcAt));
  }
};

uint64_t ContributionLog::FileBytes(const LogRoom& room) {
  return format::kBlock + RingBytes(room);
}

absl::StatusOr<std::unique_ptr<ContributionLog>> ContributionLog::Open(
    Disk* blocking_disk, Disk* disk, const std::string& folder, const ExtentIdentity& identity,
    const LogRoom& room, bool live, Executor* executor, MemoryAccount* account, Posted posted) {
  const std::string path = absl::StrCat(folder, "/", format::kFileName);
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StateArena> blocks,
                       StateArena::New(2 * format::kBlock));
  auto* const block = reinterpret_cast<uint8_t*>(blocks->floats());
  uint64_t ring_bytes = 0;
  uint64_t batch_bytes = 0;
  absl::Status found = ReadHeader(blocking_disk, path, identity, block, &ring_bytes, &batch_bytes);
  const bool copied = absl::IsFailedPrecondition(found);
  if (live && copied) {
    EPS_LOG_WARN("storage: " << found.message() << "; it is not used: the job goes back to its "
                             << "last cut");
  }
  const bool kept = live && !copied && !absl::IsNotFound(found);
  // One that is not needed may be damaged; an error of the device is no damage.
  if (kept || !(copied || absl::IsNotFound(found) || absl::IsDataLoss(found))) {
    EPS_RETURN_IF_ERROR(found);
  }
  const bool large = ring_bytes >= RingBytes(room) && batch_bytes >= BatchBytes(room);
  if (!found.ok() || (!kept && !large)) {
    if (!absl::IsNotFound(found)) EPS_RETURN_IF_ERROR(blocking_disk->Remove(path));
    EPS_RETURN_IF_ERROR(CreateLog(blocking_disk, folder, path, identity, room, block));
    ring_bytes = RingBytes(room);
    batch_bytes = BatchBytes(room);
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> file, disk->Open(path));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<StateArena> memory, StateArena::New(batch_bytes));
  const absl::Status charged = account->TryCharge(MemoryKind::kScratch, batch_bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": a batch of ", batch_bytes, " bytes does not fit: ", charged.message(),
                     "; raise servers.memory_limit, or set storage.log=none"));
  }
  // One that was kept holds at least a step between two cuts, or it would not be there.
  const uint64_t step_room = (ring_bytes - 2 * batch_bytes) / room.step_bytes;
  const uint64_t steps = step_room < 3 ? 1 : (step_room - 1) / 2;
  return std::unique_ptr<ContributionLog>(
      new ContributionLog(std::move(file), ring_bytes, batch_bytes, steps, kept, std::move(memory),
                          executor, account, std::move(posted)));
}

ContributionLog::ContributionLog(std::unique_ptr<AsyncFile> file, uint64_t ring_bytes,
                                 uint64_t batch_bytes, uint64_t steps, bool kept,
                                 std::unique_ptr<StateArena> memory, Executor* executor,
                                 MemoryAccount* account, Posted posted)
    : file_(std::move(file)),
      ring_bytes_(ring_bytes),
      batch_bytes_(batch_bytes),
      steps_(steps),
      kept_(kept),
      memory_(std::move(memory)),
      executor_(executor),
      account_(account),
      posted_(std::move(posted)) {}

ContributionLog::~ContributionLog() { account_->Release(MemoryKind::kScratch, batch_bytes_); }

uint64_t ContributionLog::OffsetOf(uint64_t position) const {
  return format::kBlock + position % ring_bytes_;
}

uint8_t* ContributionLog::buffer() const { return reinterpret_cast<uint8_t*>(memory_->floats()); }

absl::Status ContributionLog::Damaged(uint64_t position, absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(file_->path(), ": batch at offset ", OffsetOf(position),
                                          ": ", what,
                                          "; remove the file to go back to the last cut"));
}

// ---- Writing.

void ContributionLog::Start(const LogId& id) {
  MutexLock lock(&mu_);
  EPS_CHECK_MSG(!writing_ && waiting_.empty(), "the log begins anew while it is written");
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
    executor_->Post([status = failure_, done = std::move(done)] { done(status); });
    return;
  }
  waiting_.push_back(Pending{std::nullopt, std::move(done)});
  MaybeWrite();
}

void ContributionLog::CancelFlushes(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (!reading_) return;
  for (Pending& flush : waiting_) {
    executor_->Post([why, done = std::move(flush.done)] { done(why); });
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
  executor_->Post([this] { WriteBatch(); });
}

absl::StatusOr<uint64_t> ContributionLog::Place(uint64_t bytes) const {
  const uint64_t left = LeftOfLap(end_);
  const uint64_t position = bytes <= left ? end_ : end_ + left;
  if (position + bytes <= begin_ + ring_bytes_) return position;
  return absl::InternalError(
      absl::StrCat(file_->path(), ": the log of ", ring_bytes_,
                   " bytes is full of contributions that no cut holds yet; lower "
                   "storage.cut_steps on all servers"));
}

void ContributionLog::WriteBatch() {
  Head head;
  Step last_step;
  absl::StatusOr<uint64_t> position = uint64_t{0};
  {
    MutexLock lock(&mu_);
    if (!failure_.ok()) position = failure_;
    head.bytes = format::batch::kHeadBytes;
    while (!waiting_.empty()) {
      if (const std::optional<LogEntry>& entry = waiting_.front().entry; entry.has_value()) {
        if (head.bytes + BytesOf(*entry) > batch_bytes_) break;
        head.bytes += BytesOf(*entry);
        last_step = std::max(last_step, entry->step);
        ++head.entries;
      }
      in_batch_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    if (in_batch_.empty()) {
      position = absl::InternalError(absl::StrCat(file_->path(), ": an entry of ",
                                                  BytesOf(*waiting_.front().entry),
                                                  " bytes, and room for ", batch_bytes_));
    }
    if (position.ok() && head.entries > 0) position = Place(head.padded());
    head.term = id_.term.value();
    head.incarnation = id_.incarnation;
    head.after = end_;
  }
  if (!position.ok()) return EndBatch(position.status());
  if (head.entries == 0) return EndBatch(absl::OkStatus());
  head.position = *position;
  uint8_t* at = buffer() + format::batch::kHeadBytes;
  for (const Pending& pending : in_batch_) {
    if (!pending.entry.has_value()) continue;
    const LogEntry& entry = *pending.entry;
    StoreAt(at + format::entry::kStepAt, entry.step.value());
    StoreAt(at + format::entry::kTextBytesAt, uint64_t{entry.text.size()});
    StoreAt(at + format::entry::kPayloadBytesAt, uint64_t{entry.payload.size()});
    StoreAt(at + format::entry::kResidualBytesAt, uint64_t{entry.residual.size()});
    at += format::entry::kHeadBytes;
    for (const absl::string_view bytes :
         {absl::string_view(entry.text), entry.payload.view(), entry.residual.view()}) {
      if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
      at += bytes.size();
    }
  }
  head.content_crc =
      CrcOf(buffer() + format::batch::kHeadBytes, head.bytes - format::batch::kHeadBytes);
  head.Store(buffer());
  std::memset(at, 0, head.padded() - head.bytes);
  const uint64_t end = head.position + head.padded();
  file_->Write(OffsetOf(head.position), absl::MakeConstSpan(buffer(), head.padded()),
               posted_([this, batch = Batch{head.position, last_step}, end](absl::Status status) {
                 if (!status.ok()) return EndBatch(status);
                 file_->Sync(posted_([this, batch, end](absl::Status synced) {
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
  // The log may be gone when the last one was told.
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

// ---- Reading.

void ContributionLog::Rewind(const LogId& id, uint64_t position) {
  Start(id);
  MutexLock lock(&mu_);
  begin_ = end_ = first_ = at_ = after_ = position;
  window_bytes_ = 0;
  settled_ = false;
  reading_ = true;
}

// What a process left that was killed may be readable and not durable yet: others are told what
// follows from it, and what is written next goes behind it.
void ContributionLog::ReadNext(Page done) {
  if (settled_) return executor_->Post([this, done = std::move(done)] { ReadBatch(done); });
  settled_ = true;
  file_->Sync(posted_([this, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status);
    ReadBatch(done);
  }));
}

// Reads as much as may belong to a batch at the position.
void ContributionLog::Load(uint64_t position, Done then) {
  const uint64_t bytes = std::min(batch_bytes_, LeftOfLap(position));
  file_->Read(OffsetOf(position), absl::MakeSpan(buffer(), bytes),
              posted_([this, position, bytes, then = std::move(then)](absl::Status status) {
                window_ = position;
                window_bytes_ = status.ok() ? bytes : 0;
                then(std::move(status));
              }));
}

bool ContributionLog::HasWindow(uint64_t position, uint64_t bytes) const {
  return position >= window_ && position + bytes <= window_ + window_bytes_;
}

// Whether a batch of this log begins there. REQUIRES HasWindow of its block.
bool ContributionLog::HeadAt(uint64_t position, Head* head) const {
  MutexLock lock(&mu_);
  return head->Load(buffer() + (position - window_)) && head->position == position &&
         head->term == id_.term.value() && head->incarnation == id_.incarnation;
}

void ContributionLog::ReadBatch(Page done) {
  if (!HasWindow(at_, format::kBlock)) {
    return Load(at_, [this, done](const absl::Status& status) {
      if (!status.ok()) return done(status);
      ReadBatch(done);
    });
  }
  Head head;
  const bool begins = HeadAt(at_, &head) && (head.after == after_ || at_ == first_);
  const uint64_t most = std::min(batch_bytes_, LeftOfLap(at_));
  if (!begins || head.bytes < format::batch::kHeadBytes || head.padded() > most) {
    return ReadLapStart(done);
  }
  if (!HasWindow(at_, head.padded())) {
    return Load(at_, [this, done](const absl::Status& status) {
      if (!status.ok()) return done(status);
      ReadBatch(done);
    });
  }
  const uint8_t* const batch = buffer() + (at_ - window_);
  const uint64_t content = head.bytes - format::batch::kHeadBytes;
  if (CrcOf(batch + format::batch::kHeadBytes, content) != head.content_crc) {
    return ReadLapStart(done);
  }
  absl::StatusOr<std::vector<LogEntry>> entries = Parse(head, batch);
  if (!entries.ok()) return done(entries.status());
  Step last_step;
  for (const LogEntry& entry : *entries) last_step = std::max(last_step, entry.step);
  {
    MutexLock lock(&mu_);
    batches_.push_back({at_, last_step});
    end_ = at_ + head.padded();
  }
  at_ = after_ = at_ + head.padded();
  done(std::move(entries));
}

// What did not fit before the end of the lap lies at the begin of the next one; where it would have
// been there may still be a torn batch, behind which it was written.
void ContributionLog::ReadLapStart(Page done) {
  const uint64_t lap = at_ + LeftOfLap(at_);
  if (at_ != after_ || at_ % ring_bytes_ == 0) return EndReading(done);
  Load(lap, [this, lap, done](const absl::Status& status) {
    if (!status.ok()) return done(status);
    Head head;
    if (HeadAt(lap, &head) && head.after == after_) {
      at_ = lap;
      return ReadBatch(done);
    }
    EndReading(done);
  });
}

// A torn batch is the last one: the next is not begun before it is synced. So none may follow that
// begins wherever one that is not whole would have ended, here or at the begin of the next lap.
void ContributionLog::EndReading(Page done) {
  const uint64_t lap = after_ + LeftOfLap(after_);
  const uint64_t most = batch_bytes_ + format::kBlock;
  CheckNone(after_ + format::kBlock, std::min(after_ + most, lap),
            [this, lap, most, done](const absl::Status& status) {
              if (!status.ok()) return done(status);
              CheckNone(lap, lap + most, [done](const absl::Status& none) {
                if (!none.ok()) return done(none);
                done(std::vector<LogEntry>());
              });
            });
}

// DataLoss if in [begin, end), which is part of one lap, a batch of this log begins that follows
// another one than the last that was read.
void ContributionLog::CheckNone(uint64_t begin, uint64_t end, Done then) {
  if (begin >= end) return then(absl::OkStatus());
  Load(begin, [this, begin, end, then = std::move(then)](const absl::Status& status) {
    if (!status.ok()) return then(status);
    Head head;
    uint64_t at = begin;
    for (; at < end && HasWindow(at, format::kBlock); at += format::kBlock) {
      if (HeadAt(at, &head) && head.after > after_) {
        return then(Damaged(at_, "it is not whole, and later ones follow"));
      }
    }
    CheckNone(at, end, then);
  });
}

absl::StatusOr<std::vector<LogEntry>> ContributionLog::Parse(const Head& head,
                                                             const uint8_t* batch) const {
  std::vector<LogEntry> entries;
  uint64_t at = format::batch::kHeadBytes;
  // Of a field; what is missing is more than all that is left.
  const auto take = [&](uint64_t bytes) {
    const uint8_t* const from = batch + at;
    at += bytes;
    return from;
  };
  const auto copy = [&](uint64_t bytes, MemoryKind kind) {
    if (bytes == 0) return Bytes();
    Buffer buffer(bytes, kind, account_);
    std::memcpy(buffer.data(), take(bytes), bytes);
    return std::move(buffer).Freeze();
  };
  while (at < head.bytes) {
    const uint64_t left = head.bytes - at;
    if (left < format::entry::kHeadBytes) break;
    const uint8_t* const entry = take(format::entry::kHeadBytes);
    const auto text = LoadFrom<uint64_t>(entry + format::entry::kTextBytesAt);
    const auto payload = LoadFrom<uint64_t>(entry + format::entry::kPayloadBytesAt);
    const auto residual = LoadFrom<uint64_t>(entry + format::entry::kResidualBytesAt);
    const uint64_t room = left - format::entry::kHeadBytes;
    if (text > room || payload > room - text || residual > room - text - payload) break;
    LogEntry found;
    found.step = Step(LoadFrom<uint64_t>(entry + format::entry::kStepAt));
    found.text = std::string(reinterpret_cast<const char*>(take(text)), text);
    found.payload = copy(payload, MemoryKind::kContribution);
    found.residual = copy(residual, MemoryKind::kResidual);
    entries.push_back(std::move(found));
  }
  if (at != head.bytes || entries.size() != head.entries || entries.empty()) {
    return Damaged(head.position, "its entries do not fill it");
  }
  return entries;
}

}  // namespace eps
