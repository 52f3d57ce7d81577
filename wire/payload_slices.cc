#include "wire/payload_slices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "wire/payload_message.h"

namespace eps {

std::vector<PayloadSlice> SlicesOf(size_t total) {
  std::vector<PayloadSlice> slices;
  size_t offset = 0;
  do {
    const size_t size = std::min(kMaxSliceBytes, total - offset);
    slices.push_back({offset, size, offset + size == total});
    offset += size;
  } while (offset < total);
  return slices;
}

PayloadAssembler::PayloadAssembler(size_t size, MemoryKind kind, MemoryAccount* account)
    : size_(size) {
  if (size > 0) buffer_ = Buffer(size, kind, account);
}

PayloadAssembler PayloadAssembler::Dropping(size_t size) {
  PayloadAssembler assembler;
  assembler.size_ = size;
  return assembler;
}

absl::Status PayloadAssembler::Append(uint64_t offset, const std::vector<grpc::Slice>& pieces) {
  size_t bytes = 0;
  for (const grpc::Slice& piece : pieces) bytes += piece.size();
  EPS_RETURN_IF_ERROR(CheckPlace(offset, bytes));
  for (const grpc::Slice& piece : pieces) Copy({piece.begin(), piece.size()});
  return absl::OkStatus();
}

absl::Status PayloadAssembler::Append(uint64_t offset, absl::Span<const uint8_t> slice) {
  EPS_RETURN_IF_ERROR(CheckPlace(offset, slice.size()));
  Copy(slice);
  return absl::OkStatus();
}

absl::Status PayloadAssembler::CheckPlace(uint64_t offset, size_t bytes) const {
  if (offset != received_) {
    return absl::InvalidArgumentError(absl::StrCat("a slice at offset ", offset, ", expected ",
                                                   received_, ": slices must arrive in order"));
  }
  if (bytes > size_ - received_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slice of ", bytes, " bytes at offset ", offset, " of ", size_, " bytes"));
  }
  return absl::OkStatus();
}

void PayloadAssembler::Copy(absl::Span<const uint8_t> slice) {
  if (!slice.empty() && buffer_.size() > 0) {
    std::memcpy(buffer_.data() + received_, slice.data(), slice.size());
  }
  received_ += slice.size();
}

Bytes PayloadAssembler::Take() {
  Bytes bytes;
  if (buffer_.size() > 0) bytes = std::move(buffer_).Freeze(received_);
  *this = PayloadAssembler();
  return bytes;
}

}  // namespace eps
