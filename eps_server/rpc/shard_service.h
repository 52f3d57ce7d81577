#ifndef EPS_SERVER_RPC_SHARD_SERVICE_H_
#define EPS_SERVER_RPC_SHARD_SERVICE_H_

#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "eps/v1/shard.grpc.pb.h"
#include "eps_server/rpc/calls/call_limit.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "eps_server/shell/job_host.h"

namespace eps {

namespace internal {
using ShardBase = v1::Shard::WithCallbackMethod_PrepareJob<
    v1::Shard::WithRawCallbackMethod_Link<v1::Shard::Service>>;
}  // namespace internal

class LinkCall;

// Serves eps.v1.Shard with gRPC's callback API: PrepareJob on a shard, Link on the lead. `host`
// must outlive the service.
class ShardService final : public internal::ShardBase {
 public:
  // The most calls that may be open at a time.
  static constexpr int kMaxPreparations = 16;  // each holds a spec of up to 16 MiB
  static constexpr int kMaxLinks = 4096;       // as many as a job has servers

  explicit ShardService(JobHost* host) : host_(host) {}

  grpc::ServerUnaryReactor* PrepareJob(grpc::CallbackServerContext* context,
                                       const v1::PrepareJobRequest* request,
                                       v1::PrepareJobReply* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Link(
      grpc::CallbackServerContext* context) override;

 private:
  friend class LinkCall;
  // Makes `link` the link of its shard. Returns Unavailable while the shard has another one: only
  // the end of its connection ends a link, never a second Register, which anyone could send.
  absl::Status Claim(ShardId shard, const LinkCall* link);
  // Lets the shard link again, if `link` is its link.
  void Release(ShardId shard, const LinkCall* link);

  JobHost* const host_;
  CallLimit preparations_{"PrepareJob", kMaxPreparations};
  CallLimit link_calls_{"Link", kMaxLinks};
  Mutex mu_;
  std::map<ShardId, const LinkCall*> links_ EPS_GUARDED_BY(mu_);
};

// The lead's end of a link. The first message, a Register, names the shard and the job. The link of
// a shard that died without closing its connection ends when the keep-alive of the connection
// fails, at most kKeepAliveTimeMs + kKeepAliveTimeoutMs (30 s) later; until then a new process of
// the shard is refused, and tries again.
class LinkCall final : public BidiCall {
 public:
  // How long a call may wait with its Register.
  static constexpr std::chrono::seconds kRegisterTimeout{30};

  static LinkCall* Start(ShardService* service, JobHost* host);

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override { End(absl::OkStatus()); }
  void OnEnded() override;

 private:
  explicit LinkCall(ShardService* service) : service_(service) {}
  // Connects the link to the mailbox of its shard, as the first message requests.
  absl::Status Register(const v1::ShardMessage& first);
  // Disconnects it again.
  void Disconnect(ShardId peer, uint64_t ticket);
  // Ends the call if no Register has arrived.
  void EndIfSilent();

  ShardService* const service_;
  CallLimit::Place place_;
  Mutex mu_;
  std::optional<ShardId> peer_ EPS_GUARDED_BY(mu_);  // set by the first message
  uint64_t ticket_ EPS_GUARDED_BY(mu_) = 0;          // of the mailbox
  bool ended_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_SHARD_SERVICE_H_
