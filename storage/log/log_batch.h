#ifndef EPS_STORAGE_LOG_LOG_BATCH_H_
#define EPS_STORAGE_LOG_LOG_BATCH_H_

// The bytes of one batch of the contribution log (docs/formats/log.md).

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/memory_account.h"
#include "storage/cuts/cut.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"

namespace eps {

// The head that precedes a batch's entries.
struct LogBatchHead {
  uint64_t term = 0;
  uint64_t incarnation = 0;
  uint64_t position = 0;
  uint64_t after = 0;  // the position at which the batch before ends
  uint64_t bytes = 0;  // of head and entries
  uint32_t entries = 0;
  uint32_t content_crc = 0;

  uint64_t padded() const { return RoundUpTo(bytes, log_format::kBlock); }
  // Returns false if there is no head of a batch.
  bool Load(const uint8_t* at);
  void Store(uint8_t* at) const;
};

// Returns the bytes of an entry in a batch.
uint64_t LogEntryBytes(const LogEntry& entry);

// A batch that grows in a buffer, entry by entry. Thread-compatible; borrows the buffer.
class LogBatchWriter {
 public:
  LogBatchWriter() = default;
  explicit LogBatchWriter(uint8_t* buffer) : buffer_(buffer) { Clear(); }

  void Clear();
  // REQUIRES room for LogEntryBytes more.
  void Add(const LogEntry& entry);
  uint64_t bytes() const { return head_.bytes; }
  // The head so far: bytes, entries and their checksum.
  const LogBatchHead& head() const { return head_; }
  // Stores the head, with its place, and the padding. Returns the whole batch.
  absl::Span<const uint8_t> Seal(const LogBatchHead& head);

 private:
  uint8_t* buffer_ = nullptr;
  LogBatchHead head_;
};

// Returns the entries of a batch whose checksum is right; nullopt if they do not fill it exactly.
// Payloads and residuals are charged to the account.
std::optional<std::vector<LogEntry>> LoadLogEntries(const LogBatchHead& head, const uint8_t* batch,
                                                    MemoryAccount* account);

}  // namespace eps

#endif  // EPS_STORAGE_LOG_LOG_BATCH_H_
