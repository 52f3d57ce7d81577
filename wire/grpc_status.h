#ifndef EPS_WIRE_GRPC_STATUS_H_
#define EPS_WIRE_GRPC_STATUS_H_

// The only place that converts statuses to and from gRPC.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace eps {

// Longer texts are cut to 1 KiB: on the wire they would replace the code (gRPC 1.51).
inline constexpr size_t kMaxStatusText = 1024;

grpc::Status ToGrpc(const absl::Status& status);
// Prefixes the text with `context` ("BeginStep on 10.0.0.1:50051"). Turns the removed stream that
// gRPC reports as UNKNOWN into UNAVAILABLE.
absl::Status FromGrpc(const grpc::Status& status, absl::string_view context);

}  // namespace eps

#endif  // EPS_WIRE_GRPC_STATUS_H_
