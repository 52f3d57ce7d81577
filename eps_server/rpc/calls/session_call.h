#ifndef EPS_SERVER_RPC_CALLS_SESSION_CALL_H_
#define EPS_SERVER_RPC_CALLS_SESSION_CALL_H_

#include <memory>
#include <optional>
#include <utility>

#include "base/job/drivers/job_scope.h"
#include "eps/v1/control.pb.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "eps_server/shell/job_host.h"

namespace eps {

// Control.Session: receives Beats and sends Notices. Reads a Beat only after the core has handled
// the one before, and keeps only the newest Notice that the client has not read: neither a worker
// that sends without a pause nor one that does not read takes memory.
class SessionCall final : public BidiCall {
 public:
  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(JobHost* host,
                                                                            CallerScope caller);

  void OnReply(const effect::ReplyMessage& message) override;

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  // A worker that closes its side without leaving has ended its session.
  void OnHalfClose() override { End(absl::OkStatus()); }
  void OnDrained() override;

 private:
  SessionCall(JobHost* host, CallerScope caller) : host_(host), caller_(std::move(caller)) {}
  std::shared_ptr<SessionCall> Self() {
    return std::static_pointer_cast<SessionCall>(shared_from_this());
  }

  JobHost* const host_;
  const CallerScope caller_;
  Mutex mu_;
  bool writing_ EPS_GUARDED_BY(mu_) = false;               // a Notice is with the transport
  std::optional<v1::Notice> pending_ EPS_GUARDED_BY(mu_);  // follows it
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_SESSION_CALL_H_
