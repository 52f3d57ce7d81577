#ifndef EPS_SERVER_RPC_SHARD_SERVICE_H_
#define EPS_SERVER_RPC_SHARD_SERVICE_H_

#include <map>
#include <memory>

#include "eps/v1/shard.grpc.pb.h"
#include "eps_server/rpc/stream_call.h"
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
  explicit ShardService(JobHost* host) : host_(host) {}

  grpc::ServerUnaryReactor* PrepareJob(grpc::CallbackServerContext* context,
                                       const v1::PrepareJobRequest* request,
                                       v1::PrepareJobReply* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Link(
      grpc::CallbackServerContext* context) override;

 private:
  friend class LinkCall;
  // Makes `link` the current link of its shard and ends the previous one.
  void SetCurrent(ShardId shard, const std::shared_ptr<LinkCall>& link);

  JobHost* const host_;
  Mutex mu_;
  std::map<ShardId, std::weak_ptr<LinkCall>> links_ EPS_GUARDED_BY(mu_);
};

// The lead's end of a link. The first message, a Register, names the shard and the job.
class LinkCall final : public BidiCall {
 public:
  static LinkCall* Start(ShardService* service, JobHost* host);

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override { End(absl::OkStatus()); }
  void OnEnded() override;

 private:
  LinkCall(ShardService* service, JobHost* host) : service_(service), host_(host) {}
  // Connects the link to the mailbox of its shard, as the first message requests.
  absl::Status Open(const v1::ShardMessage& first);

  ShardService* const service_;
  JobHost* const host_;
  bool opened_ = false;  // used by OnMessage only, which never runs concurrently
  Mutex mu_;
  std::shared_ptr<JobShell> link_job_ EPS_GUARDED_BY(mu_);  // null until the first message
  StreamId stream_ EPS_GUARDED_BY(mu_);  // registered, so that the link ends with the job
  ShardId peer_ EPS_GUARDED_BY(mu_);
  uint64_t ticket_ EPS_GUARDED_BY(mu_) = 0;
  bool ended_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_SHARD_SERVICE_H_
