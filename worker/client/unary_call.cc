#include "worker/client/unary_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "eps/v1/control.grpc.pb.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {

using std::chrono::steady_clock;

void Pause(ClientCore* core, TimePoint deadline) {
  while (core->failure.ok() && !core->Interrupted() && steady_clock::now() < deadline) {
    core->changed.WaitUntil(&core->mu, std::min(deadline, steady_clock::now() + kInterruptPoll));
  }
}

absl::Status CallOnce(const std::shared_ptr<ClientCore>& core, TimePoint deadline,
                      absl::string_view what, const UnaryCall& call) {
  std::string request_id;
  {
    ClientLock lock(&core->mu);
    request_id = core->NextRequestId();
  }
  const auto left = std::max<steady_clock::duration>(deadline - steady_clock::now(),
                                                     std::chrono::milliseconds(1));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::microseconds>(left));
  std::optional<grpc::Status> result;  // guarded by the client's lock
  call(&context, request_id, [core, &result](grpc::Status status) {
    ClientLock lock(&core->mu);
    result = std::move(status);
    core->changed.NotifyAll();
  });
  ClientLock lock(&core->mu);
  while (!result.has_value()) {
    if (!core->failure.ok() || core->Interrupted()) context.TryCancel();
    core->changed.WaitFor(&core->mu, kInterruptPoll);
  }
  return FromGrpc(*result, what);
}

absl::Status CallWithRetry(const std::shared_ptr<ClientCore>& core, const std::string& address,
                           grpc::Channel* channel, absl::string_view what, const UnaryCall& call) {
  const TimePoint start = steady_clock::now();
  const TimePoint give_up = start + core->options.rpc_timeout;
  const std::string context = absl::StrCat(what, " on ", address);
  absl::Status last_error;
  for (int attempt = 0;; ++attempt) {
    const absl::Status status = CallOnce(core, give_up, context, call);
    if (status.ok() || !MayRepeat(status.code())) return status;
    // The last attempt may have been cut short by the remaining time; its error explains nothing.
    if (last_error.ok() || !absl::IsDeadlineExceeded(status)) last_error = status;
    ClientLock lock(&core->mu);
    const TimePoint next = steady_clock::now() + core->BackOff(attempt);
    if (next < give_up) Pause(core.get(), next);
    if (!core->failure.ok()) return core->failure;
    if (core->Interrupted()) return absl::CancelledError(absl::StrCat("interrupted in ", context));
    if (next >= give_up) return core->Away(address, start, what, last_error);
    grpc::experimental::ChannelResetConnectionBackoff(channel);
  }
}

absl::Status SayHello(const std::shared_ptr<ClientCore>& core, const std::string& address,
                      const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = v1::Control::NewStub(channel);
  v1::HelloRequest request;
  request.set_min_protocol(kProtocolVersion);
  request.set_max_protocol(kProtocolVersion);
  request.set_client(core->options.client_name);
  v1::HelloReply reply;
  EPS_RETURN_IF_ERROR(
      CallWithRetry(core, address, channel.get(), "Hello",
                    [&](grpc::ClientContext* context, const std::string& request_id, auto done) {
                      request.set_request_id(request_id);
                      stub->async()->Hello(context, &request, &reply, std::move(done));
                    }));
  if (reply.protocol() == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("server ", address, " speaks protocol ",
                                                    reply.protocol(), ", this worker ",
                                                    kProtocolVersion));
}

}  // namespace eps
