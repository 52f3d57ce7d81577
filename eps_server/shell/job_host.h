#ifndef EPS_SERVER_SHELL_JOB_HOST_H_
#define EPS_SERVER_SHELL_JOB_HOST_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/shell/job_shell.h"

namespace eps {

// Calls from this server to others. Thread-safe; nothing blocks.
class PeerCaller {
 public:
  using Clock = TimerQueue::Clock;
  using Prepared = std::function<void(absl::StatusOr<v1::PrepareJobReply>)>;

  virtual ~PeerCaller() = default;
  // Calls `done` once, on any thread, at the latest at the deadline. Unavailable names the address
  // of a server that does not answer.
  virtual void Prepare(const std::string& address, v1::PrepareJobRequest request,
                       Clock::time_point deadline, Prepared done) = 0;
  // Keeps a link from this shard to its lead, servers()[0], until CloseLink.
  virtual void OpenLink(std::shared_ptr<JobShell> job) = 0;
  virtual void CloseLink() = 0;
};

// The one job of this process: made by CreateJob on the lead and by PrepareJob elsewhere, one
// request at a time. Thread-safe; nothing blocks; requests are answered on any thread.
//
// A job that no state was given to yet gives way: on the lead when a shard refused its part, on
// another shard when the same lead prepares another job. So a corrected spec can be tried without
// starting the servers again. Any other job stays until the process ends.
class JobHost {
 public:
  using Clock = TimerQueue::Clock;
  using Created = std::function<void(absl::StatusOr<v1::CreateJobReply>)>;
  using Prepared = PeerCaller::Prepared;

  // `peers` outlives the host.
  JobHost(ShellEnvironment environment, PeerCaller* peers);
  // REQUIRES that the pool has ended: no request is in work.
  ~JobHost();

  // Opens a job that this server served before it ended: its state is there, the other shards will
  // register or are registered with. To be called before any request. Blocks while the state is
  // opened.
  absl::Status Reopen(ServedSpec served);

  // `deadline` is the caller's; the other shards get it less a margin for the reply.
  void CreateJob(v1::CreateJobRequest request, Clock::time_point deadline, Created done);
  void PrepareJob(v1::PrepareJobRequest request, Prepared done);

  // The job for a client's request, if it is the one of this id; 0 stands for any. NotFound says
  // what is here; Unavailable while other shards are being prepared.
  absl::StatusOr<std::shared_ptr<JobShell>> Find(uint64_t job_id) const;
  // The job, also while it is being prepared; null: none.
  std::shared_ptr<JobShell> job() const;

  // From now on nothing new begins: Unavailable for what would.
  void Drain() { draining_.store(true, std::memory_order_release); }
  // Unavailable once Drain was called.
  absl::Status CheckNotDraining() const;

  const ShellEnvironment& environment() const { return environment_; }

 private:
  struct Creation;  // a CreateJob whose shards are being prepared

  // All on admission_.
  void DoCreate(const v1::CreateJobRequest& request, Clock::time_point deadline, Created done);
  void DoPrepare(const v1::PrepareJobRequest& request, Prepared done);
  void PrepareShards(Clock::time_point deadline);
  void OnPrepared(const std::shared_ptr<Creation>& creation, uint32_t shard, absl::Status status);
  void Reply(std::shared_ptr<JobShell> job, Created done);
  // A new job; `retired_` is what it replaces, as long as it is in the way.
  absl::StatusOr<std::shared_ptr<JobShell>> Make(JobSpec spec, std::vector<std::string> servers,
                                                 ShardId shard, Term term);
  // Makes the job the one that Find gives.
  void Install(std::shared_ptr<JobShell> job);
  // Ends an untouched job: its streams, its link.
  void Retire(const absl::Status& why);
  // Calls `then` when the memory of retired jobs is free, or after a while all the same.
  void WhenRetiredIsGone(std::function<void()> then, int attempts = 0);

  ShellEnvironment environment_;
  PeerCaller* const peers_;
  std::atomic<bool> draining_{false};
  Sequence admission_;

  std::shared_ptr<Creation> creation_;  // on admission_
  std::atomic<bool> ready_{false};      // the job's other shards are prepared
  std::weak_ptr<const void> retired_;   // on admission_: alive while a retired job is
  mutable Mutex mu_;
  std::shared_ptr<JobShell> job_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_JOB_HOST_H_
