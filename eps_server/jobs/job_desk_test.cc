#include "eps_server/jobs/job_desk.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/drivers/job_standing.h"
#include "base/testing/manual_executor.h"
#include "eps_server/jobs/testing/board_requests.h"
#include "gtest/gtest.h"
#include "storage/testing/catalogue_samples.h"

namespace eps {
namespace {

constexpr uint64_t kBoard = 11;

// Keeps the events that it gets.
class RecordingWatcher final : public JobWatcher {
 public:
  bool OnEvent(const v1::JobEvent& event) override {
    EXPECT_TRUE(end.ok()) << "an event after the end";
    events.push_back(event);
    return events.size() < pause_at;
  }
  void OnEnd(const absl::Status& status) override { end = status; }

  std::vector<v1::JobEvent> events;
  size_t pause_at = SIZE_MAX;  // wants no more once it has this many
  absl::Status end;
};

// A desk on one thread, whose time the test sets.
class JobDeskTest : public testing::Test {
 protected:
  JobDeskTest() { Open(); }

  void Open() {
    executor_ = ManualExecutor();
    JobDesk::Environment environment;
    environment.executor = &executor_;
    environment.now_ms = [this] { return now_; };
    environment.wall_ms = [] { return int64_t{5}; };
    environment.random = [this] { return random_++; };
    auto desk = JobDesk::Open(std::move(environment), &store_);
    ASSERT_TRUE(desk.ok()) << desk.status();
    desk_ = *std::move(desk);
  }
  template <class Request, class Reply>
  absl::StatusOr<Reply> Ask(void (JobDesk::*function)(Request, JobDesk::Done<Reply>, CallerScope),
                            Request request) {
    absl::StatusOr<Reply> answer = absl::UnknownError("no answer");
    const auto done = [&](absl::StatusOr<Reply> reply) { answer = std::move(reply); };
    (desk_.get()->*function)(std::move(request), done, CallerScope());
    executor_.RunAll();
    return answer;
  }
  absl::Status Submit(const std::string& name) {
    return Ask(&JobDesk::Submit, SubmitOf(name)).status();
  }
  v1::Job Claim(int driver, const std::string& name) {
    const auto claimed = Ask(&JobDesk::Claim, ClaimOf(driver, name));
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return claimed.ok() ? claimed->job() : v1::Job();
  }
  v1::Job TheJob() { return Ask(&JobDesk::List, ListOf())->jobs(0); }
  std::shared_ptr<RecordingWatcher> Watch(uint64_t revision, const std::string& name = "") {
    const auto watcher = std::make_shared<RecordingWatcher>();
    v1::WatchJobsRequest request;
    request.set_board(kBoard);
    request.set_from_revision(revision);
    request.set_name(name);
    last_watch_ = desk_->NewWatch();
    desk_->Watch(last_watch_, request, watcher, CallerScope());
    executor_.RunAll();
    return watcher;
  }
  void Tick(int64_t ms) {
    now_ += ms;
    desk_->Tick();
    executor_.RunAll();
  }

  ManualExecutor executor_;
  MapStore store_;
  int64_t now_ = 100;
  uint64_t random_ = kBoard;
  uint64_t last_watch_ = 0;
  std::unique_ptr<JobDesk> desk_;
};

TEST_F(JobDeskTest, ShowsNoChangeThatIsNotWritten) {
  ASSERT_TRUE(Submit("a").ok());
  const auto watcher = Watch(0);
  store_.fail = absl::InternalError("the disk is gone");
  const absl::Status status = Submit("b");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "the disk is gone")) << status;
  const auto listed = Ask(&JobDesk::List, ListOf());
  EXPECT_EQ(listed->jobs_size(), 1);
  EXPECT_EQ(listed->revision(), 1u);
  EXPECT_EQ(watcher->events.size(), 1u);
}

TEST_F(JobDeskTest, WritesOnceForEachChange) {
  EXPECT_EQ(store_.writes, 0);
  ASSERT_TRUE(Submit("a").ok());
  ASSERT_TRUE(Submit("a").ok());
  const v1::Job job = Claim(1, "a");
  EXPECT_EQ(store_.writes, 2);
  v1::ReportJobRequest report = ReportOf(job, v1::JOB_PHASE_RUNNING);
  report.mutable_progress()->set_step(3);
  const auto reported = Ask(&JobDesk::Report, report);
  ASSERT_TRUE(reported.ok()) << reported.status();
  EXPECT_EQ(reported->lease_ms(), 30'000u);
  EXPECT_EQ(store_.writes, 3);
  report.mutable_progress()->set_step(4);
  ASSERT_TRUE(Ask(&JobDesk::Report, report).ok());
  EXPECT_EQ(store_.writes, 3) << "a step alone is not durable";
}

TEST_F(JobDeskTest, ComesBackWithItsJobs) {
  ASSERT_TRUE(Submit("a").ok());
  const v1::Job job = Claim(1, "a");
  now_ += JobBoard::kLeaseMs - 1;
  Open();
  const auto listed = Ask(&JobDesk::List, ListOf());
  EXPECT_EQ(listed->board(), kBoard);
  EXPECT_EQ(listed->revision(), 2u);
  ASSERT_EQ(listed->jobs_size(), 1);
  EXPECT_EQ(listed->jobs(0).DebugString(), job.DebugString());
  now_ += JobBoard::kLeaseMs - 1;
  EXPECT_TRUE(Ask(&JobDesk::Report, ReportOf(job)).ok());
}

TEST_F(JobDeskTest, TellsChangesInOrderOnce) {
  ASSERT_TRUE(Submit("a").ok());
  const auto from_start = Watch(0);
  const auto from_now = Watch(1);
  const auto of_b = Watch(0, "b");
  ASSERT_TRUE(Submit("b").ok());
  ASSERT_TRUE(Submit("b").ok());
  const v1::Job job = Claim(1, "b");
  const auto revisions = [](const RecordingWatcher& watcher) {
    std::vector<uint64_t> found;
    for (const v1::JobEvent& event : watcher.events) found.push_back(event.revision());
    return found;
  };
  EXPECT_EQ(revisions(*from_start), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(revisions(*from_now), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(revisions(*of_b), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(of_b->events[1].job().DebugString(), job.DebugString());
}

TEST_F(JobDeskTest, ASlowWatcherMissesNothing) {
  ASSERT_TRUE(Submit("a").ok());
  const auto watcher = Watch(0);
  watcher->pause_at = 3;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Submit(absl::StrCat("b", i)).ok());
  EXPECT_EQ(watcher->events.size(), 3u);
  Tick(JobDesk::kBookmarkMs);
  EXPECT_EQ(watcher->events.size(), 3u) << "no bookmark either";
  watcher->pause_at = SIZE_MAX;
  desk_->Continue(last_watch_);
  executor_.RunAll();
  ASSERT_EQ(watcher->events.size(), 6u);
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(watcher->events[i].revision(), i + 1);
}

TEST_F(JobDeskTest, AWatcherThatIsTooSlowEnds) {
  ASSERT_TRUE(Submit("a").ok());
  const auto watcher = Watch(0);
  watcher->pause_at = 2;
  v1::Job job = Ask(&JobDesk::List, ListOf())->jobs(0);
  for (size_t i = 0; i < JobBoard::kMaxEvents + 2; ++i) {
    const auto updated =
        Ask(&JobDesk::Update, UpdateOf(job, i % 2 == 0 ? v1::DESIRED_PAUSE : v1::DESIRED_RUN));
    ASSERT_TRUE(updated.ok()) << updated.status();
    job = updated->job();
  }
  EXPECT_EQ(watcher->events.size(), 2u);
  EXPECT_EQ(watcher->end.code(), absl::StatusCode::kResourceExhausted) << watcher->end;
  EXPECT_EQ(Watch(2)->end.code(), absl::StatusCode::kOutOfRange);
}

TEST_F(JobDeskTest, TellsProgressOnceATick) {
  ASSERT_TRUE(Submit("a").ok());
  const v1::Job job = Claim(1, "a");
  const auto watcher = Watch(2);
  v1::ReportJobRequest report = ReportOf(job);
  for (uint64_t step = 1; step <= 5; ++step) {
    report.mutable_progress()->set_step(step);
    ASSERT_TRUE(Ask(&JobDesk::Report, report).ok());
  }
  EXPECT_TRUE(watcher->events.empty());
  Tick(1000);
  Tick(1000);
  ASSERT_EQ(watcher->events.size(), 1u);
  EXPECT_EQ(watcher->events[0].kind(), v1::JobEvent::KIND_PROGRESS);
  EXPECT_EQ(watcher->events[0].revision(), 2u);
  EXPECT_EQ(watcher->events[0].job().progress().step(), 5u);
}

TEST_F(JobDeskTest, SendsBookmarks) {
  ASSERT_TRUE(Submit("a").ok());
  const auto watcher = Watch(1, "another");
  for (int i = 0; i < 25; ++i) Tick(1000);
  ASSERT_EQ(watcher->events.size(), 2u);
  EXPECT_EQ(watcher->events[0].kind(), v1::JobEvent::KIND_BOOKMARK);
  EXPECT_EQ(watcher->events[0].revision(), 1u);
}

TEST_F(JobDeskTest, TicksEndLeases) {
  ASSERT_TRUE(Submit("a").ok());
  const v1::Job job = Claim(1, "a");
  const auto watcher = Watch(2);
  Tick(JobBoard::kLeaseMs - 1);
  EXPECT_EQ(watcher->events.back().kind(), v1::JobEvent::KIND_BOOKMARK);
  Tick(1);
  ASSERT_EQ(watcher->events.back().kind(), v1::JobEvent::KIND_PUT);
  EXPECT_TRUE(watcher->events.back().job().driver().driver_nonce().empty());
  EXPECT_GT(Claim(2, "a").driver().generation(), job.driver().generation());
}

TEST_F(JobDeskTest, SaysWhichJobsAreOver) {
  ASSERT_TRUE(Submit("a").ok());
  v1::ReportJobRequest created = ReportOf(Claim(1, "a"));
  created.set_job_id(7);
  const auto reported = Ask(&JobDesk::Report, created);
  ASSERT_TRUE(reported.ok()) << reported.status();
  ASSERT_TRUE(Ask(&JobDesk::Update, UpdateOf(reported->job(), v1::DESIRED_CANCEL)).ok());
  EXPECT_TRUE(desk_->LeftJobs().empty()) << "its driver may still work on it";
  Tick(JobBoard::kLeaseMs);
  ASSERT_EQ(desk_->LeftJobs().size(), 1u);
  Open();
  ASSERT_EQ(desk_->LeftJobs().size(), 1u) << "after a restart";
  EXPECT_EQ(desk_->LeftJobs()[0].job_id(), 7u);
}

TEST_F(JobDeskTest, ALeaseIsOverWithoutATick) {
  ASSERT_TRUE(Submit("a").ok());
  const v1::Job job = Claim(1, "a");
  now_ += JobBoard::kLeaseMs;
  EXPECT_EQ(Ask(&JobDesk::Report, ReportOf(job)).status().code(), absl::StatusCode::kAborted);
  EXPECT_GT(Claim(2, "a").driver().generation(), job.driver().generation());
}

TEST_F(JobDeskTest, StopEndsWatches) {
  const auto watcher = Watch(0);
  const auto gone = Watch(0);
  desk_->Unwatch(last_watch_);
  desk_->Stop(absl::UnavailableError("the end"));
  executor_.RunAll();
  EXPECT_EQ(watcher->end.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(gone->end.ok());
  EXPECT_EQ(Watch(0)->end.code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Submit("a").ok());
}

// Counts the events of one watch, and checks their order, while many threads change the board.
class CountingWatcher final : public JobWatcher {
 public:
  CountingWatcher(JobDesk* desk, uint64_t watch, uint64_t until)
      : desk_(desk), watch_(watch), until_(until) {}
  bool OnEvent(const v1::JobEvent& event) override {
    if (event.kind() != v1::JobEvent::KIND_PUT) return true;
    EXPECT_EQ(event.revision(), ++revision_);
    if (revision_ == until_) all_.set_value();
    if (revision_ % 7 != 0) return true;
    desk_->Continue(watch_);
    return false;
  }
  void OnEnd(const absl::Status&) override {}
  bool WaitForAll() {
    return all_.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  }

 private:
  JobDesk* const desk_;
  const uint64_t watch_;
  const uint64_t until_;
  uint64_t revision_ = 0;
  std::promise<void> all_;
};

TEST(JobDesk, ServesManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kJobs = 20;  // of each thread: submitted, claimed, ended
  MapStore store;
  TimerQueue timers;
  auto executor = std::make_unique<ThreadPool>(2);
  JobDesk::Environment environment = JobDesk::Environment::Default();
  environment.executor = executor.get();
  environment.timers_or_null = &timers;
  auto desk = JobDesk::Open(std::move(environment), &store);
  ASSERT_TRUE(desk.ok()) << desk.status();
  std::promise<uint64_t> board;
  (*desk)->List(
      ListOf(), [&](absl::StatusOr<v1::ListJobsReply> reply) { board.set_value(reply->board()); },
      CallerScope());
  v1::WatchJobsRequest request;
  request.set_board(board.get_future().get());
  std::vector<std::shared_ptr<CountingWatcher>> watchers;
  for (int i = 0; i < 3; ++i) {
    const uint64_t id = (*desk)->NewWatch();
    watchers.push_back(
        std::make_shared<CountingWatcher>(desk->get(), id, uint64_t{3} * kThreads * kJobs));
    (*desk)->Watch(id, request, watchers.back(), CallerScope());
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kJobs; ++i) {
        const std::string name = absl::StrCat("job-", t, "-", i);
        std::promise<v1::Job> claimed;
        (*desk)->Submit(
            SubmitOf(name),
            [](const absl::StatusOr<v1::SubmitJobReply>& reply) {
              EXPECT_TRUE(reply.ok()) << reply.status();
            },
            CallerScope());
        (*desk)->Claim(
            ClaimOf(t, name),
            [&](absl::StatusOr<v1::ClaimJobReply> reply) {
              EXPECT_TRUE(reply.ok()) << reply.status();
              claimed.set_value(reply.ok() ? reply->job() : v1::Job());
            },
            CallerScope());
        (*desk)->Report(
            EndOf(claimed.get_future().get(), 0),
            [](const absl::StatusOr<v1::ReportJobReply>& reply) {
              EXPECT_TRUE(reply.ok()) << reply.status();
            },
            CallerScope());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& watcher : watchers) EXPECT_TRUE(watcher->WaitForAll());
  (*desk)->Stop(absl::UnavailableError("the end"));
  timers.Stop();
  executor.reset();
}

TEST_F(JobDeskTest, TellsHowAJobStands) {
  ASSERT_TRUE(Submit("a").ok());
  const DriverLease lease = {desk_->board(), Claim(1, "a").driver().generation()};
  const auto standing = [&] { return desk_->Find(JobId(7), lease).standing; };
  EXPECT_EQ(standing(), JobStanding::kDriven);
  EXPECT_EQ(desk_->Find(JobId(7), {lease.board + 1, lease.generation}).standing,
            JobStanding::kOffTheBoard);
  Tick(JobBoard::kLeaseMs);
  EXPECT_EQ(standing(), JobStanding::kUndriven);
  v1::Job job = TheJob();
  ASSERT_TRUE(Ask(&JobDesk::Update, UpdateOf(job, v1::DESIRED_PAUSE)).ok());
  EXPECT_EQ(standing(), JobStanding::kHeld);
  Open();
  EXPECT_EQ(standing(), JobStanding::kHeld) << "also for the next process";
  job = TheJob();
  ASSERT_TRUE(Ask(&JobDesk::Update, UpdateOf(job, v1::DESIRED_CANCEL)).ok());
  ASSERT_TRUE(Ask(&JobDesk::Remove, RemoveOf("a")).ok());
  EXPECT_EQ(standing(), JobStanding::kHeld) << "nobody will go on with it";
}

// Two jobs of equal configurations are one job of Control.
TEST_F(JobDeskTest, TheLastJobOfAnIdCounts) {
  ASSERT_TRUE(Submit("a").ok());
  ASSERT_TRUE(Submit("b").ok());
  const v1::Job first = Claim(1, "a");
  const DriverLease lease = {desk_->board(), first.driver().generation()};
  ASSERT_TRUE(Ask(&JobDesk::Report, WithId(EndOf(first, 1), 7)).ok());
  EXPECT_EQ(desk_->Find(JobId(7), lease).standing, JobStanding::kHeld);
  const v1::Job second = Claim(2, "b");
  EXPECT_EQ(desk_->Find(JobId(7), lease).standing, JobStanding::kHeld) << "nobody knows its id yet";
  ASSERT_TRUE(Ask(&JobDesk::Report, WithId(ReportOf(second), 7)).ok());
  EXPECT_EQ(desk_->Find(JobId(7), lease).standing, JobStanding::kDriven);
}

}  // namespace
}  // namespace eps
