#include "storage/log/log_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"

namespace eps {
namespace {

namespace format = log_format;

static_assert(format::kBlock == kDiskBlock);

// Entries that wait for a sync share one, up to this size. An entry that alone is larger makes the
// batch larger.
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;

uint64_t BatchBytes(const LogRoom& room) {
  return RoundUpTo(
      std::max(std::min(kBatchBytes, room.step_bytes),
               format::batch::kHeadBytes + format::entry::kHeadBytes + room.entry_bytes),
      format::kBlock);
}

// There are room.steps steps between two cuts; until the second cut is durable, as many again and
// the first entries of one more. The rest of a lap that is too short for a batch is left free.
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

// Reads the header of an existing log, which must be whole and of that identity. Returns
// FailedPrecondition if it is, but in a copy of the file: the process whose memory the log stands
// for may continue the original.
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

// Creates the log under another name and renames it once it is whole, so that no crash leaves a log
// without its header.
absl::Status CreateLog(Disk* disk, const std::string& folder, const std::string& path,
                       const ExtentIdentity& identity, const LogRoom& room, uint8_t* block) {
  const std::string fresh = path + format::kFreshSuffix;
  const absl::Status removed = disk->Remove(fresh);  // the remains of an interrupted creation
  if (!absl::IsNotFound(removed)) EPS_RETURN_IF_ERROR(removed);
  EPS_ASSIGN_OR_RETURN(const uint64_t free_bytes, disk->FreeBytes(folder));
  const uint64_t wanted = LogRing::FileBytes(room);
  if (wanted > free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": the contributions of ", 2 * room.steps + 1, " steps want ", wanted,
                     " bytes, and ", free_bytes, " are free: ", wanted - free_bytes,
                     " are missing; free them, lower storage.cut_steps, or set storage.log=none"));
  }
  EPS_RETURN_IF_ERROR(disk->CreateFile(fresh, wanted));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, disk->Open(fresh));
  FillHeader(identity, file->identity(), RingBytes(room), BatchBytes(room), block);
  EPS_RETURN_IF_ERROR(WriteBlocking(file.get(), 0, absl::MakeConstSpan(block, format::kBlock)));
  EPS_RETURN_IF_ERROR(SyncBlocking(file.get()));
  return disk->Rename(fresh, path);
}

}  // namespace

uint64_t LogRing::FileBytes(const LogRoom& room) { return format::kBlock + RingBytes(room); }

absl::StatusOr<std::unique_ptr<LogRing>> LogRing::Open(
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
  // A log that is not needed may be damaged. An error of the device is not damage.
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
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<StateArena> memory, StateArena::New(2 * batch_bytes));
  const absl::Status charged = account->TryCharge(MemoryKind::kScratch, 2 * batch_bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        path, ": two batches of ", batch_bytes, " bytes do not fit: ", charged.message(),
        "; raise servers.memory_limit, or set storage.log=none"));
  }
  // A log that was kept has room for at least one step between two cuts.
  const uint64_t step_room = (ring_bytes - 2 * batch_bytes) / room.step_bytes;
  const uint64_t steps = step_room < 3 ? 1 : (step_room - 1) / 2;
  return std::unique_ptr<LogRing>(new LogRing(std::move(file), ring_bytes, batch_bytes, steps, kept,
                                              std::move(memory), executor, account,
                                              std::move(posted)));
}

LogRing::LogRing(std::unique_ptr<AsyncFile> file, uint64_t ring_bytes, uint64_t batch_bytes,
                 uint64_t steps, bool kept, std::unique_ptr<StateArena> memory, Executor* executor,
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

LogRing::~LogRing() { account_->Release(MemoryKind::kScratch, 2 * batch_bytes_); }

uint64_t LogRing::OffsetOf(uint64_t position) const {
  return format::kBlock + position % ring_bytes_;
}

absl::Status LogRing::Damaged(uint64_t position, absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(file_->path(), ": batch at offset ", OffsetOf(position),
                                          ": ", what,
                                          "; remove the file to go back to the last cut"));
}

}  // namespace eps
