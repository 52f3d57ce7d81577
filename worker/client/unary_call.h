#ifndef EPS_WORKER_CLIENT_UNARY_CALL_H_
#define EPS_WORKER_CLIENT_UNARY_CALL_H_

// Unary calls of a client on the thread that uses it. While they wait, they notice an interrupt
// (ClientOptions::interrupted) and a failure of the client.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "worker/client/client_core.h"

namespace eps {

// Starts a call that runs `done` once, on a thread of gRPC.
using UnaryCall = std::function<void(grpc::ClientContext* context, const std::string& request_id,
                                     std::function<void(grpc::Status)> done)>;

// Waits until `deadline`, a failure of the client or an interrupt.
void Pause(ClientCore* core, TimePoint deadline) EPS_REQUIRES(core->mu, client_lock);

// Calls once, with `deadline`, and waits for the answer. `what` is the context of an error.
// Cancelled after an interrupt or a failure of the client.
absl::Status CallOnce(const std::shared_ptr<ClientCore>& core, TimePoint deadline,
                      absl::string_view what, const UnaryCall& call) EPS_EXCLUDES(client_lock);

// Retries a call until it is answered or the server has been away for rpc_timeout; the error then
// names the server and `what`. Returns Cancelled after an interrupt, and the client's failure.
absl::Status CallWithRetry(const std::shared_ptr<ClientCore>& core, const std::string& address,
                           grpc::Channel* channel, absl::string_view what, const UnaryCall& call)
    EPS_EXCLUDES(client_lock);

// Agrees with a server on the protocol's version. FailedPrecondition if it speaks another one.
absl::Status SayHello(const std::shared_ptr<ClientCore>& core, const std::string& address,
                      const std::shared_ptr<grpc::Channel>& channel) EPS_EXCLUDES(client_lock);

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_UNARY_CALL_H_
