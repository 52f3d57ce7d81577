#ifndef EPS_SERVER_RPC_GRPC_PEERS_H_
#define EPS_SERVER_RPC_GRPC_PEERS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "eps_server/rpc/lead_link.h"
#include "eps_server/shell/job_host.h"

namespace eps {

// PeerCaller over gRPC. REQUIRES Stop() before destruction.
class GrpcPeers final : public PeerCaller {
 public:
  // How long a server may take to say Hello before it counts as unavailable: servers of a job are
  // started together.
  static constexpr std::chrono::seconds kHelloTimeout{20};

  GrpcPeers();
  ~GrpcPeers() override;

  void Prepare(const std::string& address, v1::PrepareJobRequest request,
               Clock::time_point deadline, Prepared done) override;
  void OpenLink(std::shared_ptr<JobShell> job) override;
  void CloseLink() override;

  // Cancels what is in work and waits until it is over: afterwards no callback runs. New calls
  // fail.
  void Stop();

 private:
  struct PrepareCall;

  // Counts a piece of work in; false once Stop was called.
  bool Begin();
  void Over();
  void Finish(PrepareCall* call, absl::StatusOr<v1::PrepareJobReply> outcome);
  void SendPrepare(PrepareCall* call);
  // Destroys what has ended. Not on gRPC's threads: the last channel to go joins them.
  void Sweep();

  Mutex mu_;
  CondVar idle_;
  bool stopping_ EPS_GUARDED_BY(mu_) = false;
  int in_work_ EPS_GUARDED_BY(mu_) = 0;
  std::map<PrepareCall*, std::unique_ptr<PrepareCall>> calls_ EPS_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<PrepareCall>> ended_calls_ EPS_GUARDED_BY(mu_);
  std::shared_ptr<LeadLink> link_ EPS_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<LeadLink>> ended_links_ EPS_GUARDED_BY(mu_);  // kept until Stop
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_GRPC_PEERS_H_
