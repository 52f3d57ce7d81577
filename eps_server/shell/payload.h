#ifndef EPS_SERVER_SHELL_PAYLOAD_H_
#define EPS_SERVER_SHELL_PAYLOAD_H_

// Payloads that arrive in slices: put together, then checked.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "compression/codec_table.h"
#include "eps_server/core/shard_core.h"
#include "grpcpp/support/slice.h"

namespace eps {

// Takes slices in order into one buffer of a size that is known before. Thread-compatible.
class PayloadAssembler {
 public:
  PayloadAssembler() = default;
  // Allocates `size` bytes of `kind` now.
  PayloadAssembler(size_t size, MemoryKind kind, MemoryAccount* account);

  // Copies the pieces to `offset`, which must be where the last slice ended. InvalidArgument for a
  // gap, a repetition or more than `size` bytes; nothing is copied then.
  absl::Status Append(uint64_t offset, const std::vector<grpc::Slice>& pieces);
  size_t received() const { return received_; }
  size_t size() const { return buffer_.size(); }
  // The bytes received so far; the assembler is empty afterwards.
  Bytes Take();

 private:
  Buffer buffer_;
  size_t received_ = 0;
};

// Checks a complete contribution: CRC32C, then by the codecs of its step, gradient and residual
// alike. What the core is to be told of it. `chunk` outlives the event; the residual is charged to
// `account`. A damaged transfer is DataLoss (worth another try),
// bytes that the codec refuses are InvalidArgument. Runs long: not for callback threads.
Event CheckPush(StreamId stream, const v1::PushHeader& header, const Chunk& chunk,
                const CodecTable& codecs, Bytes bytes, MemoryAccount* account);

// OK if the CRC32C of `bytes` is `expected`; DataLoss with both else.
absl::Status CheckCrc(const Bytes& bytes, uint32_t expected);

}  // namespace eps

#endif  // EPS_SERVER_SHELL_PAYLOAD_H_
