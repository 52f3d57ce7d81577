#ifndef EPS_WIRE_PAYLOAD_MESSAGE_H_
#define EPS_WIRE_PAYLOAD_MESSAGE_H_

// Protobuf messages whose bulk bytes never pass through protobuf: the small fields are encoded by
// the library into one slice, the payload field follows as slices that point at the memory it lies
// in. On the wire this is an ordinary message of the .proto; any client can read and write it.

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

// `header` (whose payload field must be unset) followed by `payload`, which is referenced until
// the transport has sent it. Empty payload: the plain message.
grpc::ByteBuffer JoinPayload(const google::protobuf::MessageLite& header, const Bytes& payload);

// The message's fields without the payload into *header, and the payload's pieces, which keep the
// received memory alive. Field order does not matter; a payload given twice, a malformed or a
// too long message is InvalidArgument.
absl::Status SplitPayload(const grpc::ByteBuffer& message, google::protobuf::MessageLite* header,
                          std::vector<grpc::Slice>* payload);

}  // namespace eps

#endif  // EPS_WIRE_PAYLOAD_MESSAGE_H_
