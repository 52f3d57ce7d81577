#include "eps_server/shell/payload.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/status_macros.h"

namespace eps {

PayloadAssembler::PayloadAssembler(size_t size, MemoryKind kind, MemoryAccount* account) {
  if (size > 0) buffer_ = Buffer(size, kind, account);
}

absl::Status PayloadAssembler::Append(uint64_t offset, const std::vector<grpc::Slice>& pieces) {
  if (offset != received_) {
    return absl::InvalidArgumentError(absl::StrCat("a slice at offset ", offset, ", expected ",
                                                   received_, ": slices come in order"));
  }
  size_t bytes = 0;
  for (const grpc::Slice& piece : pieces) bytes += piece.size();
  if (bytes > buffer_.size() - received_) {
    return absl::InvalidArgumentError(absl::StrCat("a slice of ", bytes, " bytes at offset ",
                                                   offset, " of ", buffer_.size(), " bytes"));
  }
  for (const grpc::Slice& piece : pieces) {
    if (piece.size() == 0) continue;
    std::memcpy(buffer_.data() + received_, piece.begin(), piece.size());
    received_ += piece.size();
  }
  return absl::OkStatus();
}

Bytes PayloadAssembler::Take() {
  if (buffer_.size() == 0) return Bytes();
  Bytes bytes = std::move(buffer_).Freeze(received_);
  buffer_ = Buffer();
  received_ = 0;
  return bytes;
}

absl::Status CheckCrc(const Bytes& bytes, uint32_t expected) {
  const uint32_t found = Crc32c(bytes.view());
  if (found == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("CRC32C of ", bytes.size(), " bytes: expected ",
                                          absl::Hex(expected, absl::kZeroPad8), ", found ",
                                          absl::Hex(found, absl::kZeroPad8)));
}

namespace {

// The residual behind the gradient in a payload, in memory of its own: it stays when the gradient
// is gone.
absl::StatusOr<Bytes> CheckResidual(const v1::PushHeader& header, const Chunk& chunk,
                                    const CodecTable& codecs, const Bytes& payload,
                                    MemoryAccount* account) {
  const Bytes received = payload.Sub(header.bytes(), header.residual_bytes());
  EPS_RETURN_IF_ERROR(CheckCrc(received, header.residual_crc32c()));
  Buffer kept(received.size(), MemoryKind::kResidual, account);
  std::memcpy(kept.data(), received.data(), received.size());
  Bytes residual = std::move(kept).Freeze();
  // The core credited this header, so the codec is there.
  const Codec* codec = codecs.residual_or_null(chunk.id, Step(header.key().step()));
  EPS_RETURN_IF_ERROR(codec->Open(chunk, Axis::kRow, residual, Content::kGradient).status());
  return residual;
}

}  // namespace

Event CheckPush(StreamId stream, const v1::PushHeader& header, const Chunk& chunk,
                const CodecTable& codecs, Bytes bytes, MemoryAccount* account) {
  const uint64_t tag = header.tag();
  const Bytes gradient = bytes.Sub(0, header.bytes());
  absl::Status status = CheckCrc(gradient, header.crc32c());
  if (!status.ok()) return event::PushInvalid{stream, tag, std::move(status)};
  const Codec& codec = codecs.gradient(chunk.id, Step(header.key().step()));
  auto opened = codec.Open(chunk, Axis::kRow, gradient, Content::kGradient);
  if (!opened.ok()) return event::PushInvalid{stream, tag, std::move(opened).status()};
  if (header.residual_bytes() == 0) {
    return event::PushReceived{stream, tag, *std::move(opened), Bytes()};
  }
  absl::StatusOr<Bytes> residual = CheckResidual(header, chunk, codecs, bytes, account);
  if (!residual.ok()) return event::PushInvalid{stream, tag, std::move(residual).status()};
  return event::PushReceived{stream, tag, *std::move(opened), *std::move(residual)};
}

}  // namespace eps
