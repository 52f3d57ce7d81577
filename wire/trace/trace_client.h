#ifndef EPS_WIRE_TRACE_TRACE_CLIENT_H_
#define EPS_WIRE_TRACE_TRACE_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "wire/trace/trace_message.h"

namespace eps {

// Receives the spans of one server. Thread-safe.
class TraceClient {
 public:
  // As ConnectToServer (wire/client_calls.h).
  static absl::StatusOr<std::unique_ptr<TraceClient>> Connect(
      const std::string& address, std::chrono::steady_clock::time_point deadline);

  // Opens a trace of `steps` steps of the server's job and blocks until its end, Cancel or
  // `timeout`. Calls `on_first` with the round trip of the first answer, and `on_reply` with each
  // later one. Call it once.
  absl::Status Follow(uint32_t steps, std::chrono::milliseconds timeout,
                      const std::function<void(const RoundTrip&)>& on_first,
                      const std::function<void(const v1::TraceReply&)>& on_reply);
  // Ends the running Follow, or a later one, with Cancelled.
  void Cancel();

 private:
  TraceClient(std::string address, const std::shared_ptr<grpc::Channel>& channel)
      : address_(std::move(address)), stub_(v1::Control::NewStub(channel)) {}

  const std::string address_;
  const std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
};

}  // namespace eps

#endif  // EPS_WIRE_TRACE_TRACE_CLIENT_H_
