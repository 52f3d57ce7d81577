#ifndef EPS_SERVER_JOBS_JOB_BOARD_H_
#define EPS_SERVER_JOBS_JOB_BOARD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/drivers/job_standing.h"
#include "eps/v1/scheduler.pb.h"
#include "eps/v1/shard.pb.h"

namespace eps {

// A job with what the board keeps about it for itself. Durable as a whole, but of job.progress only
// the value at the last durable change.
struct BoardRecord {
  v1::Job job;
  uint64_t submitted = 0;              // the revision at its submission: its age
  std::string last_driver;             // nonce of the driver that had the last lease
  bool lease_expired = false;          // that lease ran out, so that driver may come back to it
  uint64_t checkpoint_generation = 0;  // of the lease under which the last checkpoint was reported
};

// Names the board and counts its durable changes.
struct BoardHead {
  uint64_t board = 0;
  uint64_t revision = 0;
  // Ids of the jobs that were removed last, as Control knows them; the oldest comes first.
  std::vector<uint64_t> removed = {};
};

// An answer of the board that has no effect yet, computed from its present state. Write `head` and
// `record` (if `removes`: the absence of a record) in one batch if `durable`, then call Commit.
struct BoardPlan {
  bool durable = false;
  bool removes = false;   // takes the job off the board
  bool renews = false;    // the driver's lease begins again
  bool progress = false;  // record.job.progress differs
  BoardHead head;
  BoardRecord record;  // after the change; without effect too: the job as it is
};

// How many jobs of the board are in which phase. Plain value.
struct BoardCounts {
  std::map<v1::JobPhase, uint64_t> phases;
  uint64_t driven = 0;    // jobs that a driver holds
  uint64_t undriven = 0;  // jobs that should run but have no driver
};

// The board of jobs: which ones there are, what is wanted of them, and who drives them. Pure: no
// clock, thread or file; `now_ms` is the caller's monotonic time. Functions that may change the
// board return a plan, and nothing changes before Commit: so readers never see a change that is not
// durable. Thread-compatible.
class JobBoard {
 public:
  static constexpr int64_t kLeaseMs = 30'000;
  static constexpr size_t kMaxJobsInWork = 100;  // jobs that have not ended
  static constexpr size_t kMaxJobs = 1000;
  static constexpr size_t kMaxRemoved = 100;  // ids in BoardHead::removed
  // Configurations and labels of all jobs: a list of them fits one message.
  static constexpr size_t kMaxTextBytes = size_t{8} << 20;
  // The events that are kept for watchers; fewer if they are large.
  static constexpr size_t kMaxEvents = 10'000;
  static constexpr size_t kMaxEventBytes = size_t{64} << 20;

  using Event = std::shared_ptr<const v1::JobEvent>;

  // An empty board, which `board` (not 0) names.
  explicit JobBoard(uint64_t board) { head_.board = board; }
  // The board of an earlier process. Drivers get their leases again in full; no event is kept.
  JobBoard(const BoardHead& head, std::vector<BoardRecord> records, int64_t now_ms);

  // The operations of the Scheduler service, with its errors. Call Expired first, until it returns
  // nothing. `uid` is random and not 0; `wall_ms` is the time since 1970.
  absl::StatusOr<BoardPlan> Submit(const v1::SubmitJobRequest& request, uint64_t uid,
                                   int64_t wall_ms) const;
  absl::StatusOr<BoardPlan> Update(const v1::UpdateJobRequest& request) const;
  absl::StatusOr<BoardPlan> Checkpoint(const v1::CheckpointJobRequest& request) const;
  absl::StatusOr<BoardPlan> Remove(const v1::RemoveJobRequest& request) const;
  absl::StatusOr<BoardPlan> Claim(const v1::ClaimJobRequest& request) const;
  absl::StatusOr<BoardPlan> Report(const v1::ReportJobRequest& request) const;
  // Returns the end of one lease that has run out, or nothing.
  std::optional<BoardPlan> Expired(int64_t now_ms) const;
  // Lets the plan take effect. REQUIRES: nothing was committed since it was made.
  void Commit(const BoardPlan& plan, int64_t now_ms);

  // Returns the job with that name; null if there is none.
  const v1::Job* FindOrNull(const std::string& name) const;
  v1::ListJobsReply List(const v1::ListJobsRequest& request) const;
  // Returns OutOfRange unless the board has all changes after that revision of that board.
  absl::Status CheckWatch(uint64_t board, uint64_t from_revision) const;
  // Returns the first change after that revision; null if it is the last revision, or older than
  // those that CheckWatch allows.
  Event NextEvent(uint64_t revision) const;
  // Returns a PROGRESS event for each job whose progress moved since the last call and since its
  // last durable change.
  std::vector<Event> TakeProgress();
  // Returns the jobs of Control that have ended here or were removed: servers may let them go.
  std::vector<v1::LeftJob> LeftJobs() const;
  BoardCounts Counts() const;
  // Returns how each job that had a driver stands.
  std::vector<BoardJob> Standings() const;
  // Returns whether a driver has a lease.
  bool has_leases() const;
  const BoardHead& head() const { return head_; }

 private:
  // A job, and what ends with the process.
  struct Entry {
    BoardRecord record;
    int64_t lease_end_ms = 0;  // if it has a driver
    bool moved = false;        // its progress has not been told
  };

  // Returns the plan that leaves `entry` as it is.
  BoardPlan Unchanged(const Entry& entry) const;
  // Returns the plan that replaces the record.
  BoardPlan Changed(BoardRecord record) const;
  absl::Status CheckRoom(const v1::SubmitJobRequest& request) const;
  size_t JobsInWork() const;
  const Entry* FindClaim(const v1::ClaimJobRequest& request) const;
  void Remember(v1::JobEvent event);

  BoardHead head_;
  std::map<std::string, Entry> jobs_;  // by name
  std::deque<Event> events_;           // of the revisions up to head_.revision, without a gap
  size_t event_bytes_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_JOBS_JOB_BOARD_H_
