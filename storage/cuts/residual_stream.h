#ifndef EPS_STORAGE_CUTS_RESIDUAL_STREAM_H_
#define EPS_STORAGE_CUTS_RESIDUAL_STREAM_H_

// The residuals of a cut as one run of bytes (docs/formats/extent.md), made and taken apart in
// pieces of any size, so that no second copy of them is ever in memory.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/memory_account.h"
#include "storage/cuts/cut.h"

namespace eps {

// Thread-compatible. The residuals must outlive it.
class ResidualWriter {
 public:
  explicit ResidualWriter(const std::vector<CutResidual>& residuals);

  uint64_t bytes() const { return bytes_; }
  uint64_t left() const { return bytes_ - written_; }
  uint32_t crc32c() const { return crc32c_; }  // of what Fill has given
  // Gives the next bytes: as many as fit, or all that are left. Returns their number.
  size_t Fill(absl::Span<uint8_t> into);

 private:
  const std::vector<CutResidual>& residuals_;
  uint64_t bytes_ = 0;
  uint64_t written_ = 0;
  size_t next_ = 0;      // the residual at hand
  uint64_t within_ = 0;  // bytes of it and its head that were given
  uint32_t crc32c_ = 0;
};

// The inverse. Believes nothing: sizes are checked against what is left of the run. Thread-
// compatible.
class ResidualReader {
 public:
  // Residuals are charged to `account` as kResidual.
  ResidualReader(uint64_t bytes, MemoryAccount* account) : left_(bytes), account_(account) {}

  uint64_t left() const { return left_; }
  uint32_t crc32c() const { return crc32c_; }
  // Takes the next bytes of the run, at most left(). DataLoss if they cannot be residuals.
  absl::Status Take(absl::Span<const uint8_t> from);
  // DataLoss if the run ends within a residual.
  absl::StatusOr<std::vector<CutResidual>> Finish() &&;

 private:
  uint64_t left_;
  MemoryAccount* const account_;
  uint32_t crc32c_ = 0;
  std::string head_;     // of the residual at hand, as far as it came
  Buffer current_;       // its bytes
  uint64_t filled_ = 0;  // of current_
  std::vector<CutResidual> residuals_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_RESIDUAL_STREAM_H_
