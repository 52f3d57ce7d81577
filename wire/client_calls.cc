#include "wire/client_calls.h"

#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "eps/v1/control.grpc.pb.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kHelloTimeout{5};
constexpr std::chrono::milliseconds kRetryPause{100};

absl::Status SayHello(const std::shared_ptr<grpc::Channel>& channel, const std::string& address) {
  grpc::ClientContext context;
  SetCallTimeout(&context, kHelloTimeout);
  v1::HelloRequest request;
  request.set_request_id(NewRequestId("hello"));
  request.set_min_protocol(kProtocolVersion);
  request.set_max_protocol(kProtocolVersion);
  request.set_client(absl::StrCat("eps ", kVersion));
  v1::HelloReply reply;
  return FromGrpc(v1::Control::NewStub(channel)->Hello(&context, request, &reply),
                  absl::StrCat("Hello on server ", address));
}

// Says what the reason may be if a server closes connections: one with TLS does not answer
// plaintext, and one without a certificate does not answer TLS.
absl::Status WithAdvice(const absl::Status& status, const std::string& address) {
  const bool tls = UsesTls(address);
  const bool closed = absl::StrContains(status.message(), "Socket closed") ||
                      absl::StrContains(status.message(), "handshake");
  if (!closed) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(),
                   tls ? "; this client uses TLS: does the server, with a certificate of the same "
                         "authority for this host (security.dir)?"
                       : "; this client uses plaintext: if the server uses TLS, name a certificate "
                         "(security.dir, and security.tls=always on loopback)"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectToServer(const std::string& address,
                                                               Clock::time_point deadline) {
  for (;;) {
    // A new channel connects at once; a used one would wait longer after each attempt.
    std::shared_ptr<grpc::Channel> channel = NewChannel(address);
    const absl::Status status = SayHello(channel, address);
    if (status.ok()) return channel;
    if (!IsAway(status)) return status;
    if (Clock::now() + kRetryPause >= deadline) return WithAdvice(status, address);
    std::this_thread::sleep_for(kRetryPause);
  }
}

bool IsAway(const absl::Status& status) {
  // A server that ends cancels the calls that are still open.
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

std::string NewRequestId(absl::string_view rpc) {
  static std::atomic<uint64_t> counter{0};
  return absl::StrCat("eps-", getpid(), "-", rpc, "-", ++counter);
}

void SetCallTimeout(grpc::ClientContext* context, std::chrono::milliseconds timeout) {
  context->set_deadline(std::chrono::system_clock::now() + timeout);
}

}  // namespace eps
