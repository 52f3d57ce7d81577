#ifndef EPS_SERVER_JOBS_JOB_DESK_H_
#define EPS_SERVER_JOBS_JOB_DESK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/job/drivers/job_scope.h"
#include "base/job/drivers/job_standing.h"
#include "base/mutex.h"
#include "eps/v1/scheduler.pb.h"
#include "eps_server/jobs/board_store.h"
#include "eps_server/jobs/job_board.h"
#include "eps_server/shell/timer_queue.h"
#include "storage/records/key_value_store.h"

namespace eps {

// Receives the events of a watch, one at a time. Functions must not block.
class JobWatcher {
 public:
  virtual ~JobWatcher() = default;
  // Takes the event. Returns false if no other shall follow before JobDesk::Continue.
  virtual bool OnEvent(const v1::JobEvent& event) = 0;
  // The watch is over; no call follows.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Owns the board of jobs and its records: does one thing at a time, makes each change durable
// before it takes effect, ends leases that run out, and tells watchers. Thread-safe; no function
// blocks but Open. Callbacks run on the executor.
class JobDesk {
 public:
  static constexpr std::chrono::milliseconds kTick{1000};  // between looks at leases and progress
  static constexpr int64_t kBookmarkMs = 10'000;

  // Where the desk works, and what it cannot know.
  struct Environment {
    Executor* executor = nullptr;          // of threads that may block
    TimerQueue* timers_or_null = nullptr;  // null: the owner calls Tick
    std::function<int64_t()> now_ms;       // monotonic
    std::function<int64_t()> wall_ms;      // since 1970
    std::function<uint64_t()> random;
    std::function<void()> changed = nullptr;  // called after each durable change; may be null
    // Uses the clocks of this machine and its source of random numbers.
    static Environment Default();
  };
  template <class Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  // Reads the board. All that `environment` names and `store_or_null` must outlive the desk; the
  // executor's tasks and the timers must have ended before the desk is destroyed. Errors of
  // BoardStore::Read.
  static absl::StatusOr<std::unique_ptr<JobDesk>> Open(Environment environment,
                                                       KeyValueStore* store_or_null);

  // The operations of the Scheduler service. Unavailable if the change could not be written;
  // PermissionDenied for a job that the caller may not reach. A caller of one job lists and claims
  // that one.
  void Submit(v1::SubmitJobRequest request, Done<v1::SubmitJobReply> done, CallerScope caller);
  void Update(v1::UpdateJobRequest request, Done<v1::UpdateJobReply> done, CallerScope caller);
  void Checkpoint(v1::CheckpointJobRequest request, Done<v1::CheckpointJobReply> done,
                  CallerScope caller);
  void Remove(v1::RemoveJobRequest request, Done<v1::RemoveJobReply> done, CallerScope caller);
  void Claim(v1::ClaimJobRequest request, Done<v1::ClaimJobReply> done, CallerScope caller);
  void Report(v1::ReportJobRequest request, Done<v1::ReportJobReply> done, CallerScope caller);
  void List(v1::ListJobsRequest request, Done<v1::ListJobsReply> done, CallerScope caller);

  // Returns the id of a new watch.
  uint64_t NewWatch() { return next_watch_.fetch_add(1); }
  // Begins the watch: `watcher` gets every change after the request's revision, in order, none
  // twice. OutOfRange as the service; ResourceExhausted for a watcher that waits until the board no
  // longer keeps its next event.
  void Watch(uint64_t id, v1::WatchJobsRequest request, std::shared_ptr<JobWatcher> watcher,
             CallerScope caller);
  // The watcher wants events again.
  void Continue(uint64_t id);
  // Ends a watch, and does not tell the watcher. The id may be unknown.
  void Unwatch(uint64_t id);

  // Ends leases that have run out, and tells progress and bookmarks. The timers call it.
  void Tick();
  // Return JobBoard::LeftJobs and Counts as of the last change. Do not wait for the executor.
  std::vector<v1::LeftJob> LeftJobs() const EPS_EXCLUDES(summary_mu_);
  BoardCounts Counts() const EPS_EXCLUDES(summary_mu_);
  // Returns how the job `id` stands, which was created by a driver with `lease`. That driver, or a
  // later one of the same job, may have left it since. kOffTheBoard if the board never had it.
  BoardJob Find(JobId id, const DriverLease& lease) const EPS_EXCLUDES(summary_mu_);
  // Returns the name of the board (DriverLeaseId.board).
  uint64_t board() const { return board_name_; }
  // Ends all watches and all later ones with `status`.
  void Stop(absl::Status status);

 private:
  // A watch, and how far it is.
  struct OpenWatch {
    std::shared_ptr<JobWatcher> watcher;
    std::string name;       // of the one job that it is about; empty: of all
    CallerScope caller;     // whose jobs it may see
    uint64_t revision = 0;  // of the last change that it got, or skipped
    bool waits = false;     // for Continue
    bool Wants(const v1::Job& job) const {
      return (name.empty() || name == job.name()) && caller.Reaches({job.name(), job.uid()});
    }
  };
  // The answers about the board that must not wait. Plain value.
  struct Summary {
    std::vector<v1::LeftJob> left;
    BoardCounts counts;
    std::vector<BoardJob> standings;
    uint64_t revision = 0;
  };
  using MakePlan = std::function<absl::StatusOr<BoardPlan>(const JobBoard& board)>;
  template <class Request>
  using PlanOf = absl::StatusOr<BoardPlan> (JobBoard::*)(const Request&) const;

  JobDesk(Environment environment, KeyValueStore* store_or_null);
  // Makes the change that `plan` returns for a request, if the caller may reach the job it names.
  template <class Request>
  void Change(Request request, CallerScope caller, PlanOf<Request> plan,
              std::function<void(absl::StatusOr<v1::Job>)> done);
  // These run on work_.
  // Whether a caller may reach the job with that name, or make one of that name.
  absl::Status CheckCaller(const CallerScope& caller, const std::string& name) const;
  void Do(const MakePlan& make, const std::function<void(absl::StatusOr<v1::Job>)>& done);
  absl::StatusOr<v1::Job> Apply(const MakePlan& make);
  void Commit(const BoardPlan& plan);
  void Summarize() EPS_EXCLUDES(summary_mu_);
  void EndLeases();
  void DoTick();
  void TellChanges();
  // Returns false if the watch has ended.
  bool TellChangesTo(OpenWatch* watch);
  void TellProgress(const v1::JobEvent& event);
  void StartTimer();

  const Environment environment_;
  uint64_t board_name_ = 0;  // immutable after Open
  std::atomic<uint64_t> next_watch_{1};
  mutable Mutex summary_mu_;
  Summary summary_ EPS_GUARDED_BY(summary_mu_);
  Sequence work_;

  // Used on work_.
  BoardStore store_;
  std::unique_ptr<JobBoard> board_;
  std::map<uint64_t, OpenWatch> watches_;
  absl::Status stopped_;  // OK until Stop
  bool timer_runs_ = false;
  bool lease_error_logged_ = false;
  int64_t last_bookmark_ms_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_JOBS_JOB_DESK_H_
