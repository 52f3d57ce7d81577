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

// Calls other servers over gRPC. Call Stop() before destruction. Thread-safe.
class GrpcPeers final : public PeerCaller {
 public:
  // How long a server may take to answer Hello before it counts as unavailable. Generous, because
  // the servers of a job start at the same time.
  static constexpr std::chrono::seconds kHelloTimeout{20};

  // `allowed` are the addresses to which the server may connect, with port 0 for every port of a
  // host; empty allows loopback addresses only. REQUIRES that CheckAddress accepts each.
  explicit GrpcPeers(std::vector<std::string> allowed);
  ~GrpcPeers() override;

  absl::Status CheckPeer(const std::string& address) const override;
  void Prepare(const std::string& address, v1::PrepareJobRequest request,
               Clock::time_point deadline, Prepared done) override;
  void OpenLink(std::shared_ptr<JobShell> job) override;
  void CloseLink() override;

  // Cancels calls in flight and waits until they have ended; no callback runs afterwards. Later
  // calls fail.
  void Stop();

 private:
  struct PrepareCall;

  // Registers a call or link in progress. Returns false after Stop.
  bool Begin();
  // Unregisters it.
  void Over();
  // Delivers the outcome of a call.
  void Finish(PrepareCall* call, absl::StatusOr<v1::PrepareJobReply> outcome);
  void SendPrepare(PrepareCall* call);
  // Destroys finished calls. Do not call it on a gRPC thread: destroying the last channel joins
  // these threads.
  void Sweep();

  const std::vector<std::string> allowed_;
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
