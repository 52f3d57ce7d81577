#include "wire/trace/trace_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "wire/client_calls.h"
#include "wire/grpc_status.h"

namespace eps {

absl::StatusOr<std::unique_ptr<TraceClient>> TraceClient::Connect(
    const std::string& address, std::chrono::steady_clock::time_point deadline) {
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                       ConnectToServer(address, deadline));
  return std::unique_ptr<TraceClient>(new TraceClient(address, channel));
}

absl::Status TraceClient::Follow(uint32_t steps, std::chrono::milliseconds timeout,
                                 const std::function<void(const RoundTrip&)>& on_first,
                                 const std::function<void(const v1::TraceReply&)>& on_reply) {
  SetCallTimeout(&context_, timeout);
  v1::TraceRequest request;
  request.set_request_id(NewRequestId("trace"));
  request.set_steps(steps);
  RoundTrip first;
  first.sent_ns = TraceNowNs();
  const auto reader = stub_->Trace(&context_, request);
  v1::TraceReply reply;
  bool begun = false;
  while (reader->Read(&reply)) {
    if (begun) {
      on_reply(reply);
      continue;
    }
    begun = true;
    first.received_ns = TraceNowNs();
    first.other_received_ns = first.other_sent_ns = reply.now_ns();
    on_first(first);
  }
  return FromGrpc(reader->Finish(), absl::StrCat("Trace on server ", address_));
}

void TraceClient::Cancel() { context_.TryCancel(); }

}  // namespace eps
