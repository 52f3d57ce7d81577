#ifndef EPS_SERVER_SHELL_PAYLOAD_H_
#define EPS_SERVER_SHELL_PAYLOAD_H_

// Checks complete payloads.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "compression/codec_table.h"
#include "eps_server/core/shard_core.h"

namespace eps {

// Checks the gradient and the residual of a complete contribution: their CRC32C, then their
// encoding, with the codecs of the contribution's step. Returns the event for the core,
// PushReceived or PushInvalid. The latter's status is DataLoss for a damaged transfer, which the
// client should retry, and InvalidArgument for bytes that the codec refuses. `chunk` must outlive
// the event; the residual is charged to `account`. Takes long: do not call it on a gRPC callback
// thread.
Event CheckPush(StreamId stream, const v1::PushHeader& header, const Chunk& chunk,
                const CodecTable& codecs, Bytes bytes, MemoryAccount* account);

// Returns DataLoss, naming both values, if the CRC32C of `bytes` is not `expected`.
absl::Status CheckCrc(const Bytes& bytes, uint32_t expected);

}  // namespace eps

#endif  // EPS_SERVER_SHELL_PAYLOAD_H_
