#include "eps_server/jobs/job_desk.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "eps_server/jobs/job_rules.h"

namespace eps {
namespace {

template <class Clock>
int64_t MillisecondsOf() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

// Returns a random number that is not 0, which stands for "none".
uint64_t RandomId(const std::function<uint64_t()>& random) {
  for (;;) {
    if (const uint64_t id = random()) return id;
  }
}

// Returns a callback that puts the job into a reply.
template <class Reply>
std::function<void(absl::StatusOr<v1::Job>)> ReplyWithJob(JobDesk::Done<Reply> done) {
  return [done = std::move(done)](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return done(job.status());
    Reply reply;
    *reply.mutable_job() = *std::move(job);
    done(std::move(reply));
  };
}

// The same for a driver, with the length of its lease.
template <class Reply>
std::function<void(absl::StatusOr<v1::Job>)> ReplyWithLease(JobDesk::Done<Reply> done) {
  return [done = std::move(done)](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return done(job.status());
    Reply reply;
    *reply.mutable_job() = *std::move(job);
    reply.set_lease_ms(JobBoard::kLeaseMs);
    done(std::move(reply));
  };
}

// Returns the name of the only job that the caller may reach; empty if it may reach all, or if its
// job is not on the board.
std::string OnlyJob(const JobBoard& board, const CallerScope& caller) {
  if (!caller.is_limited() || !caller.name.empty()) return caller.name;
  const v1::ListJobsReply all = board.List({});
  for (const v1::Job& job : all.jobs()) {
    if (caller.Reaches({job.name(), job.uid()})) return job.name();
  }
  return "";
}

// Removes the jobs that the caller may not reach.
void RemoveForeign(const CallerScope& caller, v1::ListJobsReply* reply) {
  auto* const jobs = reply->mutable_jobs();
  const auto foreign = [&caller](const v1::Job& job) {
    return !caller.Reaches({job.name(), job.uid()});
  };
  jobs->erase(std::remove_if(jobs->begin(), jobs->end(), foreign), jobs->end());
}

}  // namespace

JobDesk::Environment JobDesk::Environment::Default() {
  Environment environment;
  environment.now_ms = MillisecondsOf<std::chrono::steady_clock>;
  environment.wall_ms = MillisecondsOf<std::chrono::system_clock>;
  environment.random = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  };
  return environment;
}

JobDesk::JobDesk(Environment environment, KeyValueStore* store_or_null)
    : environment_(std::move(environment)),
      work_(environment_.executor, Sequence::kLongTasks),
      store_(store_or_null) {}

absl::StatusOr<std::unique_ptr<JobDesk>> JobDesk::Open(Environment environment,
                                                       KeyValueStore* store_or_null) {
  std::unique_ptr<JobDesk> desk(new JobDesk(std::move(environment), store_or_null));
  const int64_t now = desk->environment_.now_ms();
  EPS_ASSIGN_OR_RETURN(desk->board_, desk->store_.Read(RandomId(desk->environment_.random), now));
  desk->Summarize();
  desk->board_name_ = desk->board_->head().board;
  desk->last_bookmark_ms_ = now;
  desk->StartTimer();
  return desk;
}

template <class Request>
void JobDesk::Change(Request request, CallerScope caller, PlanOf<Request> plan,
                     std::function<void(absl::StatusOr<v1::Job>)> done) {
  work_.Post([this, request = std::move(request), caller = std::move(caller), plan,
              done = std::move(done)] {
    Do(
        [&](const JobBoard& board) -> absl::StatusOr<BoardPlan> {
          EPS_RETURN_IF_ERROR(CheckCaller(caller, request.name()));
          return (board.*plan)(request);
        },
        done);
  });
}

void JobDesk::Submit(v1::SubmitJobRequest request, Done<v1::SubmitJobReply> done,
                     CallerScope caller) {
  work_.Post([this, request = std::move(request), done = ReplyWithJob(std::move(done)),
              caller = std::move(caller)] {
    Do(
        [&](const JobBoard& board) -> absl::StatusOr<BoardPlan> {
          EPS_RETURN_IF_ERROR(CheckCaller(caller, request.name()));
          return board.Submit(request, RandomId(environment_.random), environment_.wall_ms());
        },
        done);
  });
}

void JobDesk::Update(v1::UpdateJobRequest request, Done<v1::UpdateJobReply> done,
                     CallerScope caller) {
  Change(std::move(request), std::move(caller), &JobBoard::Update, ReplyWithJob(std::move(done)));
}

void JobDesk::Checkpoint(v1::CheckpointJobRequest request, Done<v1::CheckpointJobReply> done,
                         CallerScope caller) {
  Change(std::move(request), std::move(caller), &JobBoard::Checkpoint,
         ReplyWithJob(std::move(done)));
}

void JobDesk::Remove(v1::RemoveJobRequest request, Done<v1::RemoveJobReply> done,
                     CallerScope caller) {
  Change(std::move(request), std::move(caller), &JobBoard::Remove,
         [done = std::move(done)](const absl::StatusOr<v1::Job>& job) {
           job.ok() ? done(v1::RemoveJobReply()) : done(job.status());
         });
}

void JobDesk::Claim(v1::ClaimJobRequest request, Done<v1::ClaimJobReply> done, CallerScope caller) {
  auto reply = ReplyWithLease<v1::ClaimJobReply>(
      [this, done = std::move(done)](absl::StatusOr<v1::ClaimJobReply> claimed) {
        if (claimed.ok()) claimed->set_board(board_name_);
        done(std::move(claimed));
      });
  work_.Post(
      [this, request = std::move(request), reply = std::move(reply), caller = std::move(caller)] {
        Do(
            [&](const JobBoard& board) -> absl::StatusOr<BoardPlan> {
              v1::ClaimJobRequest claim = request;
              if (claim.name().empty()) claim.set_name(OnlyJob(board, caller));
              EPS_RETURN_IF_ERROR(CheckCaller(caller, claim.name()));
              return board.Claim(claim);
            },
            reply);
      });
}

void JobDesk::Report(v1::ReportJobRequest request, Done<v1::ReportJobReply> done,
                     CallerScope caller) {
  Change(std::move(request), std::move(caller), &JobBoard::Report, ReplyWithLease(std::move(done)));
}

void JobDesk::List(v1::ListJobsRequest request, Done<v1::ListJobsReply> done, CallerScope caller) {
  work_.Post(
      [this, request = std::move(request), done = std::move(done), caller = std::move(caller)] {
        const absl::Status status = CheckListing(request);
        if (!status.ok()) return done(status);
        EndLeases();
        v1::ListJobsReply reply = board_->List(request);
        RemoveForeign(caller, &reply);
        done(std::move(reply));
      });
}

absl::Status JobDesk::CheckCaller(const CallerScope& caller, const std::string& name) const {
  const v1::Job* const job = board_->FindOrNull(name);
  return caller.Check({name, job == nullptr ? 0 : job->uid()});
}

void JobDesk::Do(const MakePlan& make, const std::function<void(absl::StatusOr<v1::Job>)>& done) {
  done(Apply(make));
  TellChanges();
  StartTimer();
}

absl::StatusOr<v1::Job> JobDesk::Apply(const MakePlan& make) {
  EndLeases();
  EPS_ASSIGN_OR_RETURN(const BoardPlan plan, make(*board_));
  const absl::Status written = store_.Write(plan);
  if (!written.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the board of jobs could not be written: ", std::string(written.message())));
  }
  Commit(plan);
  return plan.record.job;
}

void JobDesk::Commit(const BoardPlan& plan) {
  board_->Commit(plan, environment_.now_ms());
  if (!plan.durable) return;
  Summarize();
  if (environment_.changed) environment_.changed();
}

void JobDesk::Summarize() {
  Summary summary = {board_->LeftJobs(), board_->Counts(), board_->Standings(),
                     board_->head().revision};
  MutexLock lock(&summary_mu_);
  summary_ = std::move(summary);
}

std::vector<v1::LeftJob> JobDesk::LeftJobs() const {
  MutexLock lock(&summary_mu_);
  return summary_.left;
}

BoardJob JobDesk::Find(JobId id, const DriverLease& lease) const {
  MutexLock lock(&summary_mu_);
  // Jobs of equal configurations have one id: the one that had a driver last counts.
  const BoardJob* found = nullptr;
  for (const BoardJob& job : summary_.standings) {
    const bool later = lease.IsBefore(job.lease) && JobId(job.job_id) == id;
    if (job.lease != lease && !later) continue;
    if (found == nullptr || found->lease.IsBefore(job.lease)) found = &job;
  }
  if (found != nullptr) return *found;
  // Somebody has removed the job after its end.
  const bool was_there = lease.board == board_name_ && lease.generation <= summary_.revision;
  return {id.value(), lease, was_there ? JobStanding::kHeld : JobStanding::kOffTheBoard};
}

BoardCounts JobDesk::Counts() const {
  MutexLock lock(&summary_mu_);
  return summary_.counts;
}

void JobDesk::EndLeases() {
  const int64_t now = environment_.now_ms();
  while (const std::optional<BoardPlan> plan = board_->Expired(now)) {
    const absl::Status written = store_.Write(*plan);
    if (!written.ok()) {
      // Nobody gets such a job before the server has been started again.
      if (!lease_error_logged_) {
        EPS_LOG_ERROR("the end of a driver's lease could not be written: " << written.ToString());
      }
      lease_error_logged_ = true;
      return;
    }
    const v1::Job& job = plan->record.job;
    EPS_LOG_WARN("job " << job.name() << ": its driver on " << job.driver().host()
                        << " was not heard from for " << JobBoard::kLeaseMs / 1000 << " s");
    Commit(*plan);
  }
}

void JobDesk::Watch(uint64_t id, v1::WatchJobsRequest request, std::shared_ptr<JobWatcher> watcher,
                    CallerScope caller) {
  work_.Post([this, id, request = std::move(request), watcher = std::move(watcher),
              caller = std::move(caller)] {
    EndLeases();
    absl::Status status = stopped_;
    if (status.ok()) status = board_->CheckWatch(request.board(), request.from_revision());
    if (!status.ok()) return watcher->OnEnd(status);
    OpenWatch& watch = watches_[id];
    watch.watcher = watcher;
    watch.name = request.name();
    watch.caller = caller;
    watch.revision = request.from_revision();
    TellChanges();
    StartTimer();
  });
}

void JobDesk::Continue(uint64_t id) {
  work_.Post([this, id] {
    const auto found = watches_.find(id);
    if (found == watches_.end() || !found->second.waits) return;
    found->second.waits = false;
    if (!TellChangesTo(&found->second)) watches_.erase(found);
  });
}

void JobDesk::Unwatch(uint64_t id) {
  work_.Post([this, id] { watches_.erase(id); });
}

void JobDesk::Stop(absl::Status status) {
  work_.Post([this, status = std::move(status)] {
    stopped_ = status;
    for (auto& watch : watches_) watch.second.watcher->OnEnd(status);
    watches_.clear();
  });
}

void JobDesk::TellChanges() {
  for (auto watch = watches_.begin(); watch != watches_.end();) {
    watch = TellChangesTo(&watch->second) ? std::next(watch) : watches_.erase(watch);
  }
}

bool JobDesk::TellChangesTo(OpenWatch* watch) {
  if (!board_->CheckWatch(board_->head().board, watch->revision).ok()) {
    watch->watcher->OnEnd(absl::ResourceExhaustedError(
        absl::StrCat("WatchJobs: this client reads too slowly, and the change after revision ",
                     watch->revision, " is no longer kept: list the jobs, and watch again")));
    return false;
  }
  while (!watch->waits) {
    const JobBoard::Event event = board_->NextEvent(watch->revision);
    if (event == nullptr) break;
    watch->revision = event->revision();
    if (watch->Wants(event->job())) watch->waits = !watch->watcher->OnEvent(*event);
  }
  return true;
}

void JobDesk::TellProgress(const v1::JobEvent& event) {
  for (auto& watch : watches_) {
    OpenWatch& open = watch.second;
    if (!open.waits && open.Wants(event.job())) open.waits = !open.watcher->OnEvent(event);
  }
}

void JobDesk::Tick() {
  work_.Post([this] { DoTick(); });
}

void JobDesk::DoTick() {
  timer_runs_ = false;
  EndLeases();
  TellChanges();
  for (const JobBoard::Event& event : board_->TakeProgress()) TellProgress(*event);
  const int64_t now = environment_.now_ms();
  if (now >= last_bookmark_ms_ + kBookmarkMs) {
    last_bookmark_ms_ = now;
    v1::JobEvent bookmark;
    bookmark.set_kind(v1::JobEvent::KIND_BOOKMARK);
    bookmark.set_revision(board_->head().revision);
    for (auto& watch : watches_) {
      OpenWatch& open = watch.second;
      if (!open.waits) open.waits = !open.watcher->OnEvent(bookmark);
    }
  }
  StartTimer();
}

void JobDesk::StartTimer() {
  if (environment_.timers_or_null == nullptr || timer_runs_) return;
  if (!board_->has_leases() && watches_.empty()) return;
  timer_runs_ = true;
  environment_.timers_or_null->Schedule(kTick, [this] { Tick(); });
}

}  // namespace eps
