#include "storage/testing/log_store.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"

namespace eps {
namespace {

// A frame: magic, number of the batch, bytes of its changes, CRC32C of everything but itself; then
// the changes, and zeros up to the next block.
struct FrameHeader {
  uint64_t magic;
  uint64_t batch;
  uint64_t bytes;
  uint32_t crc;
  uint32_t zero;
};
constexpr uint64_t kMagic = 0x00676f6c2d737065;  // "eps-log"
constexpr uint32_t kRemoved = ~uint32_t{0};      // as the length of a value

uint64_t RoundUp(uint64_t bytes) { return RoundUpTo(bytes, kDiskBlock); }

// Memory that is aligned for the disk.
class Blocks {
 public:
  explicit Blocks(uint64_t bytes)
      : data_(static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, RoundUp(bytes))), &std::free),
        size_(RoundUp(bytes)) {
    EPS_CHECK(data_ != nullptr);
    std::memset(data_.get(), 0, size_);
  }
  absl::Span<uint8_t> span() { return {data_.get(), size_}; }
  absl::string_view view() const { return {reinterpret_cast<const char*>(data_.get()), size_}; }

 private:
  std::unique_ptr<uint8_t, decltype(&std::free)> data_;
  size_t size_;
};

void PutU32(std::string* out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

bool TakeU32(absl::string_view* in, uint32_t* value) {
  if (in->size() < 4) return false;
  *value = 0;
  for (int i = 4; i-- > 0;) *value = *value << 8 | static_cast<uint8_t>((*in)[i]);
  in->remove_prefix(4);
  return true;
}

bool TakeText(absl::string_view* in, uint32_t bytes, std::string* text) {
  if (in->size() < bytes) return false;
  *text = std::string(in->substr(0, bytes));
  in->remove_prefix(bytes);
  return true;
}

std::string EncodeChanges(const std::vector<KeyValueStore::Change>& changes) {
  std::string out;
  for (const KeyValueStore::Change& change : changes) {
    PutU32(&out, static_cast<uint32_t>(change.key.size()));
    out += change.key;
    PutU32(&out, change.value ? static_cast<uint32_t>(change.value->size()) : kRemoved);
    if (change.value) out += *change.value;
  }
  return out;
}

bool ApplyChanges(absl::string_view in, std::map<std::string, std::string>* records) {
  while (!in.empty()) {
    uint32_t bytes = 0;
    std::string key;
    std::string value;
    if (!TakeU32(&in, &bytes) || !TakeText(&in, bytes, &key) || !TakeU32(&in, &bytes)) return false;
    if (bytes == kRemoved) {
      records->erase(key);
      continue;
    }
    if (!TakeText(&in, bytes, &value)) return false;
    (*records)[std::move(key)] = std::move(value);
  }
  return true;
}

uint32_t FrameCrc(FrameHeader header, absl::string_view changes) {
  header.crc = 0;
  return Crc32c(changes, Crc32c({reinterpret_cast<const char*>(&header), sizeof(FrameHeader)}));
}

std::string EncodeFrame(uint64_t batch, const std::string& changes) {
  FrameHeader header = {kMagic, batch, changes.size(), 0, 0};
  header.crc = FrameCrc(header, changes);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + changes;
}

// Parses the changes of the whole frame at the beginning of `bytes`.
std::optional<absl::string_view> DecodeFrame(absl::string_view bytes, uint64_t* batch) {
  FrameHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.zero != 0) return std::nullopt;
  if (header.bytes > bytes.size() - sizeof(header)) return std::nullopt;
  const absl::string_view changes = bytes.substr(sizeof(header), header.bytes);
  if (FrameCrc(header, changes) != header.crc) return std::nullopt;
  *batch = header.batch;
  return changes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogStore>> LogStore::Open(Disk* disk, const std::string& folder,
                                                         uint64_t log_bytes) {
  EPS_RETURN_IF_ERROR(disk->CreateFolder(folder));
  std::unique_ptr<LogStore> store(new LogStore(disk, folder));
  EPS_ASSIGN_OR_RETURN(store->lock_, disk->TakeLock(folder + "/LOCK"));
  {
    MutexLock lock(&store->mu_);
    EPS_RETURN_IF_ERROR(store->Prepare(log_bytes));
  }
  return store;
}

absl::Status LogStore::Prepare(uint64_t log_bytes) {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List(folder_));
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  // A crash in Compact leaves this file. It holds nothing that the old file lacks.
  if (has("log.new")) EPS_RETURN_IF_ERROR(disk_->Remove(folder_ + "/log.new"));
  if (!has("log")) return Compact(records_, log_bytes);
  EPS_ASSIGN_OR_RETURN(file_, disk_->Open(folder_ + "/log"));
  return Recover();
}

absl::Status LogStore::Recover() {
  Blocks blocks(file_->size());
  EPS_RETURN_IF_ERROR(ReadBlocking(file_.get(), 0, blocks.span()));
  uint64_t batch = 0;
  while (const auto changes = DecodeFrame(blocks.view().substr(end_), &batch)) {
    if (end_ != 0 && batch != batches_ + 1) break;
    if (!ApplyChanges(*changes, &records_)) break;
    batches_ = batch;
    end_ = std::min<uint64_t>(file_->size(), end_ + RoundUp(sizeof(FrameHeader) + changes->size()));
  }
  if (end_ == 0) {
    return absl::DataLossError(absl::StrCat(file_->path(), " at 0: no whole frame"));
  }
  // A frame is written after the one before it is durable, so only the last one may be torn.
  for (uint64_t offset = end_; offset < file_->size(); offset += kDiskBlock) {
    if (DecodeFrame(blocks.view().substr(offset), &batch) && batch > batches_) {
      return absl::DataLossError(absl::StrCat(file_->path(), " at ", end_, ": batch ", batches_ + 1,
                                              " is damaged, but batch ", batch, " at ", offset,
                                              " is whole"));
    }
  }
  return absl::OkStatus();
}

absl::Status LogStore::Append(AsyncFile* file, uint64_t offset, const std::string& frame) {
  Blocks blocks(frame.size());
  std::copy(frame.begin(), frame.end(), blocks.span().begin());
  EPS_RETURN_IF_ERROR(WriteBlocking(file, offset, blocks.span()));
  return SyncBlocking(file);
}

absl::Status LogStore::Compact(const std::map<std::string, std::string>& records,
                               uint64_t log_bytes) {
  std::vector<Change> changes;
  for (const auto& record : records) changes.push_back({record.first, record.second});
  const std::string frame = EncodeFrame(batches_ + 1, EncodeChanges(changes));
  const std::string path = folder_ + "/log.new";
  EPS_RETURN_IF_ERROR(
      disk_->CreateFile(path, std::max(RoundUp(log_bytes), 2 * RoundUp(frame.size()))));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> file, disk_->Open(path));
  EPS_RETURN_IF_ERROR(Append(file.get(), 0, frame));
  EPS_RETURN_IF_ERROR(disk_->Rename(path, folder_ + "/log"));
  EPS_ASSIGN_OR_RETURN(file_, disk_->Open(folder_ + "/log"));
  ++batches_;
  end_ = RoundUp(frame.size());
  return absl::OkStatus();
}

absl::Status LogStore::Write(const std::vector<Change>& changes) {
  const std::string encoded = EncodeChanges(changes);
  MutexLock lock(&mu_);
  if (!failed_.ok()) return failed_;
  std::map<std::string, std::string> records = records_;
  EPS_CHECK(ApplyChanges(encoded, &records));
  const std::string frame = EncodeFrame(batches_ + 1, encoded);
  if (end_ + RoundUp(frame.size()) > file_->size()) {
    failed_ = Compact(records, file_->size());
  } else {
    failed_ = Append(file_.get(), end_, frame);
    if (failed_.ok()) {
      ++batches_;
      end_ += RoundUp(frame.size());
    }
  }
  if (!failed_.ok()) {
    failed_ =
        absl::InternalError(absl::StrCat("the log in ", folder_, ": writing: ", failed_.message()));
    return failed_;
  }
  records_ = std::move(records);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> LogStore::Scan(
    absl::string_view prefix) const {
  std::vector<std::pair<std::string, std::string>> found;
  MutexLock lock(&mu_);
  for (auto it = records_.lower_bound(std::string(prefix));
       it != records_.end() && absl::StartsWith(it->first, prefix); ++it) {
    found.push_back(*it);
  }
  return found;
}

}  // namespace eps
