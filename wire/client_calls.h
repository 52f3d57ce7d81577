#ifndef EPS_WIRE_CLIENT_CALLS_H_
#define EPS_WIRE_CLIENT_CALLS_H_

// The parts that clients of servers share: the beginning of a connection, and fields of each call.
// Thread-safe.

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace eps {

// Says Hello to the server and repeats it until `deadline`. Returns the channel of the answer;
// Unavailable, with the server's name, if it does not answer.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectToServer(
    const std::string& address, std::chrono::steady_clock::time_point deadline);

// Returns whether an error may only mean that the server is away for a while.
bool IsAway(const absl::Status& status);

// Returns a new name for a request to `rpc`, for the server's log: unique in this process.
std::string NewRequestId(absl::string_view rpc);

void SetCallTimeout(grpc::ClientContext* context, std::chrono::milliseconds timeout);

}  // namespace eps

#endif  // EPS_WIRE_CLIENT_CALLS_H_
