#ifndef EPS_SERVER_RPC_LEAD_LINK_H_
#define EPS_SERVER_RPC_LEAD_LINK_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "eps/v1/shard.grpc.pb.h"
#include "eps_server/shell/job_shell.h"

namespace eps {

// A shard's end of the link to its lead. Reconnects whenever the link breaks, with backoff if it
// was not up for kMaxBackoff: a lead that still has the link of a predecessor refuses it at once.
// Posts LinkUp and LinkDown to the core and sends the messages of the job's mailbox. Thread-safe.
//
// Do not destroy it on a gRPC thread: destroying the last channel joins these threads.
class LeadLink : public std::enable_shared_from_this<LeadLink> {
 public:
  static constexpr std::chrono::milliseconds kMinBackoff{100};
  static constexpr std::chrono::milliseconds kMaxBackoff{2000};

  // Calls `gone` once after Stop, when no RPC is in flight any more. Do not destroy the link before
  // that.
  static std::shared_ptr<LeadLink> Open(std::shared_ptr<JobShell> job, std::function<void()> gone);
  // Ends the link for good. Does not wait.
  void Stop();

 private:
  class Attempt;  // one Link RPC
  LeadLink(std::shared_ptr<JobShell> job, std::function<void()> gone);
  void Connect();
  void OnAttemptDone(bool was_up, const grpc::Status& status);

  const std::string lead_;  // the address of the lead
  TimerQueue* const timers_;
  const std::function<void()> gone_;
  const std::unique_ptr<v1::Shard::Stub> stub_;

  Mutex mu_;
  std::shared_ptr<JobShell> job_ EPS_GUARDED_BY(mu_);        // dropped before gone_ is called
  std::shared_ptr<Attempt> attempt_ EPS_GUARDED_BY(mu_);     // the newest one
  bool attempt_in_work_ EPS_GUARDED_BY(mu_) = false;         // its RPC has not ended
  TimerQueue::Clock::time_point began_ EPS_GUARDED_BY(mu_);  // when attempt_ began
  bool stopping_ EPS_GUARDED_BY(mu_) = false;
  TimerQueue::Handle retry_ EPS_GUARDED_BY(mu_) = 0;
  std::chrono::milliseconds backoff_ EPS_GUARDED_BY(mu_) = kMinBackoff;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_LEAD_LINK_H_
