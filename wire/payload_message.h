#ifndef EPS_WIRE_PAYLOAD_MESSAGE_H_
#define EPS_WIRE_PAYLOAD_MESSAGE_H_

// Protobuf messages whose bulk bytes bypass protobuf: the library encodes the small fields into one
// slice, and the payload field follows as slices that reference the memory that holds it. On the
// wire the result is an ordinary message of the .proto, which any client can read and write.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace eps {

// Field number of `bytes data` in FetchSlice, PushFrame, ImportStateRequest and ExportStateReply.
inline constexpr int kPayloadField = 15;
inline constexpr size_t kMaxSliceBytes = size_t{2} << 20;    // payload in one message
inline constexpr size_t kMaxMessageBytes = size_t{4} << 20;  // whole message

// Returns `header` (whose payload field must be unset) followed by `payload`, which stays
// referenced until the transport has sent it. With an empty payload, the result is the plain
// message. Dies if `payload` is longer than kMaxSliceBytes.
grpc::ByteBuffer JoinPayload(const google::protobuf::MessageLite& header, const Bytes& payload);

// Parses the message's fields except the payload into *header and returns the payload's pieces,
// which keep the received memory alive. Accepts fields in any order. Returns InvalidArgument for a
// message that is malformed, too long or has two payloads.
absl::Status SplitPayload(const grpc::ByteBuffer& message, google::protobuf::MessageLite* header,
                          std::vector<grpc::Slice>* payload);

}  // namespace eps

#endif  // EPS_WIRE_PAYLOAD_MESSAGE_H_
