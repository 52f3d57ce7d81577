#include "storage/log/log_batch.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/bytes.h"

namespace eps {

namespace format = log_format;

bool LogBatchHead::Load(const uint8_t* at) {
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

void LogBatchHead::Store(uint8_t* at) const {
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

uint64_t LogEntryBytes(const LogEntry& entry) {
  return format::entry::kHeadBytes + entry.text.size() + entry.payload.size() +
         entry.residual.size();
}

void LogBatchWriter::Clear() {
  head_ = LogBatchHead();
  head_.bytes = format::batch::kHeadBytes;
}

void LogBatchWriter::Add(const LogEntry& entry) {
  uint8_t* const begin = buffer_ + head_.bytes;
  StoreAt(begin + format::entry::kStepAt, entry.step.value());
  StoreAt(begin + format::entry::kTextBytesAt, uint64_t{entry.text.size()});
  StoreAt(begin + format::entry::kPayloadBytesAt, uint64_t{entry.payload.size()});
  StoreAt(begin + format::entry::kResidualBytesAt, uint64_t{entry.residual.size()});
  uint8_t* at = begin + format::entry::kHeadBytes;
  for (const absl::string_view bytes :
       {absl::string_view(entry.text), entry.payload.view(), entry.residual.view()}) {
    if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
    at += bytes.size();
  }
  const absl::string_view stored(reinterpret_cast<const char*>(begin), LogEntryBytes(entry));
  head_.content_crc = Crc32c(stored, head_.content_crc);
  head_.bytes += stored.size();
  ++head_.entries;
}

absl::Span<const uint8_t> LogBatchWriter::Seal(const LogBatchHead& head) {
  head.Store(buffer_);
  std::memset(buffer_ + head.bytes, 0, head.padded() - head.bytes);
  return absl::MakeConstSpan(buffer_, head.padded());
}

std::optional<std::vector<LogEntry>> LoadLogEntries(const LogBatchHead& head, const uint8_t* batch,
                                                    MemoryAccount* account) {
  std::vector<LogEntry> entries;
  uint64_t at = format::batch::kHeadBytes;
  const auto take = [&](uint64_t bytes) {
    const uint8_t* const from = batch + at;
    at += bytes;
    return from;
  };
  const auto copy = [&](uint64_t bytes, MemoryKind kind) {
    if (bytes == 0) return Bytes();
    Buffer buffer(bytes, kind, account);
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
    return std::nullopt;
  }
  return entries;
}

}  // namespace eps
