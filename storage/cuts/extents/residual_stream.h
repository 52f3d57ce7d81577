#ifndef EPS_STORAGE_CUTS_EXTENTS_RESIDUAL_STREAM_H_
#define EPS_STORAGE_CUTS_EXTENTS_RESIDUAL_STREAM_H_

// Converts the residuals of a cut to and from one byte stream (docs/formats/extent.md), in pieces
// of any size, so that memory never holds a second copy.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/memory_account.h"
#include "storage/cuts/cut.h"

namespace eps {

// Writes residuals as the stream. Thread-compatible. The residuals must outlive the writer.
class ResidualWriter {
 public:
  explicit ResidualWriter(const std::vector<CutResidual>& residuals);

  uint64_t bytes() const { return bytes_; }
  uint64_t left() const { return bytes_ - written_; }
  uint32_t crc32c() const { return crc32c_; }  // of the bytes that Fill has written
  // Writes as many of the next bytes as fit into the span. Returns their number.
  size_t Fill(absl::Span<uint8_t> into);

 private:
  const std::vector<CutResidual>& residuals_;
  uint64_t bytes_ = 0;
  uint64_t written_ = 0;
  size_t next_ = 0;      // the current residual
  uint64_t within_ = 0;  // bytes of its head and content written so far
  uint32_t crc32c_ = 0;
};

// Parses the stream. Checks every size against the rest of the stream. Thread-compatible.
class ResidualReader {
 public:
  // Charges the residuals to `account` as kResidual.
  ResidualReader(uint64_t bytes, MemoryAccount* account) : left_(bytes), account_(account) {}

  uint64_t left() const { return left_; }
  uint32_t crc32c() const { return crc32c_; }
  // Parses the next bytes of the stream, at most left(). DataLoss if they cannot be residuals.
  absl::Status Take(absl::Span<const uint8_t> from);
  // Returns the residuals. DataLoss if the stream ends within one.
  absl::StatusOr<std::vector<CutResidual>> Finish() &&;

 private:
  uint64_t left_;
  MemoryAccount* const account_;
  uint32_t crc32c_ = 0;
  std::string head_;     // the head of the current residual, as far as received
  Buffer current_;       // its content
  uint64_t filled_ = 0;  // bytes of current_ received so far
  std::vector<CutResidual> residuals_;
};

// Returns DataLoss with both values if the CRC32C of a cut's residuals differs from its record.
absl::Status CheckResidualsCrc32c(uint32_t expected, uint32_t found);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_EXTENTS_RESIDUAL_STREAM_H_
