#ifndef EPS_WIRE_GRPC_STATUS_H_
#define EPS_WIRE_GRPC_STATUS_H_

// The one place that converts statuses to and from gRPC.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace eps {

// Texts are cut at 1 KiB: longer ones replace the code on the wire (gRPC 1.51).
inline constexpr size_t kMaxStatusText = 1024;

grpc::Status ToGrpc(const absl::Status& status);
// `context` ("BeginStep on 10.0.0.1:50051") is put before the text. A removed stream, which gRPC
// reports as UNKNOWN, becomes UNAVAILABLE.
absl::Status FromGrpc(const grpc::Status& status, absl::string_view context);

}  // namespace eps

#endif  // EPS_WIRE_GRPC_STATUS_H_
