#include "eps_server/shell/payload.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/status_macros.h"

namespace eps {

absl::Status CheckCrc(const Bytes& bytes, uint32_t expected) {
  const uint32_t found = Crc32c(bytes.view());
  if (found == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("CRC32C of ", bytes.size(), " bytes: expected ",
                                          absl::Hex(expected, absl::kZeroPad8), ", found ",
                                          absl::Hex(found, absl::kZeroPad8)));
}

namespace {

// Checks the residual, which follows the gradient in the payload, and copies it to memory of its
// own, because it outlives the gradient.
absl::StatusOr<Bytes> CheckResidual(const v1::PushHeader& header, const Chunk& chunk,
                                    const CodecTable& codecs, const Bytes& payload,
                                    MemoryAccount* account) {
  const Bytes received = payload.Sub(header.bytes(), header.residual_bytes());
  EPS_RETURN_IF_ERROR(CheckCrc(received, header.residual_crc32c()));
  Buffer kept(received.size(), MemoryKind::kResidual, account);
  std::memcpy(kept.data(), received.data(), received.size());
  Bytes residual = std::move(kept).Freeze();
  // The core credited this header, so the step has a residual codec.
  const Codec* codec = codecs.residual_or_null(chunk.id, Step(header.key().step()));
  EPS_RETURN_IF_ERROR(codec->Open(chunk, Axis::kRow, residual, Content::kGradient).status());
  return residual;
}

}  // namespace

Event CheckPush(StreamId stream, const v1::PushHeader& header, const Chunk& chunk,
                const CodecTable& codecs, Bytes bytes, MemoryAccount* account) {
  const uint64_t tag = header.tag();
  if (header.has_nonfinite_element()) {
    const Codec& codec = codecs.gradient(chunk.id, Step(header.key().step()));
    return event::PushInvalid{stream, tag,
                              InadmissibleGradient(codec.name(), chunk, header.nonfinite_element(),
                                                   std::numeric_limits<float>::quiet_NaN())};
  }
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
