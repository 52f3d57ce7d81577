#ifndef EPS_SERVER_SHELL_JOB_HOST_H_
#define EPS_SERVER_SHELL_JOB_HOST_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/drivers/job_scope.h"
#include "base/job/drivers/job_standing.h"
#include "base/mutex.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/shell/job_shell.h"
#include "storage/cuts/catalogue.h"

namespace eps {

// The calls from this server to other servers. Thread-safe; no method blocks.
class PeerCaller {
 public:
  using Clock = TimerQueue::Clock;
  using Prepared = std::function<void(absl::StatusOr<v1::PrepareJobReply>)>;

  virtual ~PeerCaller() = default;
  // Returns PermissionDenied, naming the address and servers.peers, if this server may not connect
  // to `address`, and InvalidArgument if it is no address.
  virtual absl::Status CheckPeer(const std::string& address) const = 0;
  // Sends PrepareJob to the server at `address` and calls `done` once, on any thread, at the
  // deadline at the latest. The outcome is Unavailable if the server does not respond in time.
  virtual void Prepare(const std::string& address, v1::PrepareJobRequest request,
                       Clock::time_point deadline, Prepared done) = 0;
  // Opens a link from this shard to its lead, servers()[0], and reconnects it until CloseLink.
  virtual void OpenLink(std::shared_ptr<JobShell> job) = 0;
  // Closes the link if there is one.
  virtual void CloseLink() = 0;
};

// The records that a server keeps about its jobs beside their state. A function that is not set
// does nothing. JobHost calls one at a time; they may block.
struct JobRecords {
  // Records that the server reopens this job when it starts again.
  std::function<absl::Status(const ServedJob&)> remember;
  // Removes the state of a job that is not open; OK if there is none.
  std::function<absl::Status(JobId)> discard;
  // Returns the jobs that this server, as a lead, lets go when it gets another one.
  std::function<std::vector<v1::LeftJob>()> left_jobs;
  // Returns the name of this server's board of jobs (DriverLease::board).
  std::function<uint64_t()> board;
  // Returns the job that a driver with this lease created, as it is on that board.
  std::function<BoardJob(JobId, const DriverLease&)> find;
};

// Owns the one job of this process. CreateJob makes it on the lead, PrepareJob on the other shards;
// these requests are handled one at a time. Thread-safe; only Reopen blocks; replies are delivered
// on any thread.
//
// A job without any state is discarded on the lead when a shard refuses its part, and on another
// shard when the same lead prepares a different job. A user can thus correct a spec without
// restarting the servers. A job that has ended on the lead's board stays until the lead gets
// another one, which takes its place on all shards. Any other job stays until the process ends.
class JobHost {
 public:
  using Clock = TimerQueue::Clock;
  using Created = std::function<void(absl::StatusOr<v1::CreateJobReply>)>;
  using Prepared = PeerCaller::Prepared;

  // `peers` outlives the host.
  JobHost(ShellEnvironment environment, JobRecords records, PeerCaller* peers);
  // REQUIRES: the pool has been destroyed, so that no request is in progress.
  ~JobHost();

  // Opens the job that the previous process served from durable storage. A shard other than the
  // lead connects to its lead. Call it before any request. Blocks while the state is opened.
  // Returns PermissionDenied if this server may no longer connect to its lead.
  absl::Status Reopen(ServedSpec served);

  // Creates the job on all its servers, with this server as the lead. Idempotent: reports the
  // existing job if it is the same. `deadline` is the caller's; the other shards get it less a
  // margin for the reply. Aborted if another driver has a later lease; PermissionDenied if the
  // caller may not reach the job. A driver with a lease begins the import of a job that is not open
  // from the beginning.
  void CreateJob(v1::CreateJobRequest request, CallerScope caller, Clock::time_point deadline,
                 Created done);
  // Prepares this server as another shard of a lead's job. Idempotent like CreateJob.
  void PrepareJob(v1::PrepareJobRequest request, Prepared done);

  // Tells the job how it stands on the board of jobs, after something there has changed.
  void OnBoardChanged();

  // Returns the job for a client's request, which names it by id; 0 matches any job. Returns
  // PermissionDenied if the caller may not reach the job that is here, NotFound, naming that one,
  // if the id differs, and Unavailable while other shards are being prepared or the job has as many
  // RPCs as it may have.
  absl::StatusOr<std::shared_ptr<JobShell>> Find(uint64_t job_id, const CallerScope& caller) const;
  // Returns what certificates and tokens of the job name: nothing if there is no job.
  JobScope scope() const EPS_EXCLUDES(mu_);
  // Returns the job, even while it is being prepared, or null if there is none.
  std::shared_ptr<JobShell> job() const;
  // Returns the last configuration that came with a CreateJob of this job; empty if there is none.
  std::string config() const EPS_EXCLUDES(mu_);

  // Refuses new jobs with UNAVAILABLE from now on, and makes Join do so.
  void Drain() { draining_.store(true, std::memory_order_release); }
  // Returns Unavailable after Drain. Join calls it, too; the steps go on to a border.
  absl::Status CheckNotDraining() const;

  // Gives up the job, and waits until its operations have ended and its memory is free, at most
  // about ten seconds. Call it when no call is left, and before the timers and the pool stop: the
  // last operations need both.
  void Close() EPS_EXCLUDES(mu_);

  const ShellEnvironment& environment() const { return environment_; }

 private:
  struct Creation;  // a CreateJob whose shards are being prepared
  // Who has the job: its last driver, and what certificates and tokens of the job name.
  struct Holder {
    DriverLease driver;
    JobScope scope;
  };

  // These run on admission_.
  void DoCreate(const v1::CreateJobRequest& request, const CallerScope& caller,
                Clock::time_point deadline, Created done);
  void DoPrepare(const v1::PrepareJobRequest& request, Prepared done);
  void PrepareShards(Clock::time_point deadline);
  void OnPrepared(const std::shared_ptr<Creation>& creation, uint32_t shard, absl::Status status);
  void Reply(std::shared_ptr<JobShell> job, Created done);
  // Checks that this server, as `shard`, may connect to the servers that it has to call: the lead
  // to all others, another shard to the lead. Errors as PeerCaller::CheckPeer.
  absl::Status CheckPeers(const std::vector<std::string>& servers, uint32_t shard) const;
  // Returns the jobs that this server may let go as a lead.
  std::vector<v1::LeftJob> LeftJobs() const;
  // Checks on the lead whether a driver with this lease, or without one, may create the job.
  // Aborted if it may not.
  absl::Status CheckDriver(const JobSpec& spec, const DriverLease& lease) const;
  // Returns who has a job that a driver with this lease creates, by the lead's board.
  Holder HolderOf(const JobSpec& spec, const DriverLease& lease) const;
  // Makes `holder` that of the current job, durably, and tells the job of a new driver.
  absl::Status TakeHolder(const Holder& holder);
  // Tells the job how it stands on the board.
  void TellStanding();
  // Removes the durable state of jobs that will not run again, except that of `but`.
  void Discard(const std::vector<v1::LeftJob>& left, JobId but) const;
  // Creates a job that `holder` has and installs it. If that fails, `retired_` tracks the memory of
  // the failed job.
  absl::StatusOr<std::shared_ptr<JobShell>> Make(JobSpec spec, std::vector<std::string> servers,
                                                 ShardId shard, Term term, const Holder& holder);
  // Makes `job` the current job.
  void Install(std::shared_ptr<JobShell> job, const JobScope& scope);
  // Gives up the current job, and returns it.
  std::shared_ptr<JobShell> Drop() EPS_EXCLUDES(mu_);
  // Drops the job and closes its link and streams with `why`; retired_ tracks its memory.
  void Retire(const absl::Status& why);
  // Calls `then` once the memory of the retired job is free, or after about ten seconds anyway.
  void WhenRetiredIsGone(std::function<void()> then, int attempts = 0);

  ShellEnvironment environment_;
  const JobRecords records_;
  PeerCaller* const peers_;
  std::atomic<bool> draining_{false};
  Sequence admission_;

  std::shared_ptr<Creation> creation_;  // used on admission_
  DriverLease driver_;                  // used on admission_; of the current job's last driver
  bool driver_everywhere_ = false;      // used on admission_; every shard knows driver_
  std::atomic<bool> ready_{false};      // the job's other shards are prepared
  std::weak_ptr<const void> retired_;   // used on admission_; expires with a retired job
  mutable Mutex mu_;
  std::shared_ptr<JobShell> job_ EPS_GUARDED_BY(mu_);
  JobScope scope_ EPS_GUARDED_BY(mu_);      // of job_
  std::string config_ EPS_GUARDED_BY(mu_);  // of the run that created job_
  CondVar closed_changed_;
  bool closed_ EPS_GUARDED_BY(mu_) = false;  // by Close
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_JOB_HOST_H_
