#include "storage/cuts/extents/residual_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "storage/cuts/extents/extent_format.h"

namespace eps {
namespace {

namespace format = extent_format::residual;

uint32_t Extend(uint32_t crc, const uint8_t* data, size_t size) {
  return Crc32c(absl::string_view(reinterpret_cast<const char*>(data), size), crc);
}

void FillHead(const CutResidual& residual, uint8_t* head) {
  const uint32_t words[] = {residual.chunk.value(), residual.use.value(), residual.part.value(), 0};
  const uint64_t size = residual.bytes.size();
  std::memcpy(head + format::kChunkAt, words, sizeof(words));
  std::memcpy(head + format::kSizeAt, &size, sizeof(size));
}

}  // namespace

ResidualWriter::ResidualWriter(const std::vector<CutResidual>& residuals) : residuals_(residuals) {
  for (const CutResidual& residual : residuals) {
    bytes_ += format::kHeadBytes + residual.bytes.size();
  }
}

size_t ResidualWriter::Fill(absl::Span<uint8_t> into) {
  size_t filled = 0;
  while (filled < into.size() && next_ < residuals_.size()) {
    const CutResidual& residual = residuals_[next_];
    uint8_t head[format::kHeadBytes];
    FillHead(residual, head);
    const bool in_head = within_ < format::kHeadBytes;
    const uint8_t* const from =
        in_head ? head + within_ : residual.bytes.data() + (within_ - format::kHeadBytes);
    const uint64_t end = format::kHeadBytes + (in_head ? 0 : residual.bytes.size());
    const size_t size = std::min<uint64_t>(end - within_, into.size() - filled);
    if (size > 0) std::memcpy(into.data() + filled, from, size);
    filled += size;
    within_ += size;
    if (within_ == format::kHeadBytes + residual.bytes.size()) {
      ++next_;
      within_ = 0;
    }
  }
  written_ += filled;
  crc32c_ = Extend(crc32c_, into.data(), filled);
  return filled;
}

absl::Status ResidualReader::Take(absl::Span<const uint8_t> from) {
  EPS_CHECK(from.size() <= left_);
  crc32c_ = Extend(crc32c_, from.data(), from.size());
  while (!from.empty()) {
    if (head_.size() < format::kHeadBytes) {
      const size_t size = std::min(from.size(), format::kHeadBytes - head_.size());
      head_.append(reinterpret_cast<const char*>(from.data()), size);
      from.remove_prefix(size);
      left_ -= size;
      if (head_.size() < format::kHeadBytes) return absl::OkStatus();
      uint32_t words[4];
      uint64_t bytes = 0;
      std::memcpy(words, head_.data() + format::kChunkAt, sizeof(words));
      std::memcpy(&bytes, head_.data() + format::kSizeAt, sizeof(bytes));
      if (bytes > left_ || words[3] != 0) {
        return absl::DataLossError(absl::StrCat("a residual of at most ", left_,
                                                " bytes expected, one of ", bytes, " found"));
      }
      current_ = Buffer(bytes, MemoryKind::kResidual, account_);
      filled_ = 0;
      residuals_.push_back({ChunkId(words[0]), StageId(words[1]), PartId(words[2]), Bytes()});
    }
    const size_t size = std::min<uint64_t>(from.size(), current_.size() - filled_);
    if (size > 0) std::memcpy(current_.data() + filled_, from.data(), size);
    from.remove_prefix(size);
    left_ -= size;
    filled_ += size;
    if (filled_ < current_.size()) return absl::OkStatus();
    residuals_.back().bytes = std::move(current_).Freeze();
    head_.clear();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CutResidual>> ResidualReader::Finish() && {
  if (left_ == 0 && head_.empty()) return std::move(residuals_);
  return absl::DataLossError(absl::StrCat("whole residuals expected, ", head_.size(),
                                          " bytes of a head and ", filled_,
                                          " of a residual found at the end"));
}

absl::Status CheckResidualsCrc32c(uint32_t expected, uint32_t found) {
  if (found == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("CRC32C ", absl::Hex(expected, absl::kZeroPad8),
                                          " expected, ", absl::Hex(found, absl::kZeroPad8),
                                          " found"));
}

}  // namespace eps
