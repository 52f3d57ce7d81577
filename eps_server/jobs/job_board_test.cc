#include "eps_server/jobs/job_board.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "eps_server/jobs/job_rules.h"
#include "eps_server/jobs/testing/board_requests.h"
#include "gtest/gtest.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

constexpr uint64_t kBoard = 77;

// A board whose plans take effect at once.
class JobBoardTest : public testing::Test {
 protected:
  absl::StatusOr<v1::Job> Take(const absl::StatusOr<BoardPlan>& plan) {
    if (!plan.ok()) return plan.status();
    board_.Commit(*plan, now_);
    return plan->record.job;
  }
  absl::StatusOr<v1::Job> Submit(const v1::SubmitJobRequest& request) {
    return Take(board_.Submit(request, next_uid_++, 1'700'000'000'000));
  }
  absl::StatusOr<v1::Job> Claim(int driver, const std::string& name = "") {
    return Take(board_.Claim(ClaimOf(driver, name)));
  }
  absl::StatusOr<v1::Job> Report(const v1::ReportJobRequest& request) {
    return Take(board_.Report(request));
  }
  absl::StatusOr<v1::Job> Update(const v1::Job& job, v1::Desired desired) {
    return Take(board_.Update(UpdateOf(job, desired)));
  }
  v1::Job Get(const std::string& name) const {
    const v1::ListJobsReply reply = board_.List(ListOf(name));
    return reply.jobs().empty() ? v1::Job() : reply.jobs(0);
  }
  // Lets time pass and ends the leases that run out.
  void Wait(int64_t ms) {
    now_ += ms;
    while (const auto plan = board_.Expired(now_)) board_.Commit(*plan, now_);
  }
  // Returns a job that a driver has brought to that phase.
  v1::Job Driven(const std::string& name, v1::JobPhase phase) {
    EXPECT_TRUE(Submit(SubmitOf(name)).ok());
    const v1::Job job = *Claim(1, name);
    return phase == v1::JOB_PHASE_STARTING ? job : *Report(ReportOf(job, phase));
  }
  uint64_t revision() const { return board_.head().revision; }

  JobBoard board_{kBoard};
  int64_t now_ = 1000;
  uint64_t next_uid_ = 1;
};

TEST_F(JobBoardTest, KeepsASubmittedJob) {
  v1::SubmitJobRequest request = SubmitOf("night-run", "model: {}\n");
  (*request.mutable_labels())["team"] = "nlp";
  const auto job = Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->uid(), 1u);
  EXPECT_EQ(job->owner(), "service");
  EXPECT_EQ(job->phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_EQ(job->desired(), v1::DESIRED_RUN);
  EXPECT_EQ(job->generation(), 1u);
  EXPECT_EQ(job->revision(), 1u);
  EXPECT_EQ(job->created_ms(), 1'700'000'000'000);
  EXPECT_EQ(job->labels().at("team"), "nlp");
  EXPECT_EQ(Get("night-run").SerializeAsString(), job->SerializeAsString());
}

TEST_F(JobBoardTest, ReturnsARepeatedSubmissionAsItIs) {
  ASSERT_TRUE(Submit(SubmitOf("a")).ok());
  ASSERT_TRUE(Claim(1, "a").ok());
  const uint64_t before = revision();
  const auto again = Submit(SubmitOf("a"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->uid(), 1u);
  EXPECT_EQ(again->phase(), v1::JOB_PHASE_STARTING);
  EXPECT_EQ(revision(), before);
}

TEST_F(JobBoardTest, NamesTheFirstLineThatDiffers) {
  ASSERT_TRUE(Submit(SubmitOf("a", "one\ntwo\nthree\n")).ok());
  const absl::Status line = Submit(SubmitOf("a", "one\n2\n3\n")).status();
  EXPECT_EQ(line.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(line.message(), "line 2 ")) << line;
  EXPECT_TRUE(absl::StrContains(line.message(), "\"two\"")) << line;
  v1::SubmitJobRequest other = SubmitOf("a", "one\ntwo\nthree\n");
  (*other.mutable_labels())["team"] = "x";
  EXPECT_TRUE(absl::StrContains(Submit(other).status().message(), "label team"));
  other.clear_labels();
  other.set_owner("me");
  EXPECT_TRUE(absl::StrContains(Submit(other).status().message(), "owner"));
}

TEST_F(JobBoardTest, RefusesBadSubmissions) {
  std::vector<std::pair<std::string, v1::SubmitJobRequest>> cases;
  for (const char* name : {"", "A", "a.b", "-a", "a-", "a b"}) {
    cases.push_back({"name", SubmitOf(name)});
  }
  cases.push_back({"name", SubmitOf(std::string(64, 'a'))});
  cases.push_back({"config", SubmitOf("a", "")});
  cases.push_back({"config", SubmitOf("a", std::string(kMaxJobConfigBytes + 1, 'x'))});
  cases.push_back({"config", SubmitOf("a", std::string("x\0y", 3))});
  cases.push_back({"request_id", SubmitOf("a")});
  cases.back().second.set_request_id(std::string(65, 'x'));
  cases.push_back({"desired", SubmitOf("a")});
  cases.back().second.set_desired(v1::DESIRED_CANCEL);
  cases.push_back({"labels", SubmitOf("a")});
  for (int i = 0; i < 65; ++i) {
    (*cases.back().second.mutable_labels())[absl::StrCat("k", i)] = "v";
  }
  cases.push_back({"labels", SubmitOf("a")});
  (*cases.back().second.mutable_labels())["a b"] = "v";
  cases.push_back({"labels.k", SubmitOf("a")});
  (*cases.back().second.mutable_labels())["k"] = std::string(257, 'v');
  for (const auto& bad : cases) {
    const absl::Status status = Submit(bad.second).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.second.DebugString();
    EXPECT_TRUE(absl::StrContains(status.message(), bad.first)) << status;
  }
  EXPECT_EQ(revision(), 0u);
  EXPECT_TRUE(Submit(SubmitOf(std::string(63, 'a'), std::string(kMaxJobConfigBytes, 'x'))).ok());
}

TEST_F(JobBoardTest, LimitsItsJobs) {
  for (size_t i = 0; i < JobBoard::kMaxJobsInWork; ++i) {
    ASSERT_TRUE(Submit(SubmitOf(absl::StrCat("a", i))).ok());
  }
  EXPECT_EQ(Submit(SubmitOf("b")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Submit(SubmitOf("a0")).ok()) << "it is there";
  for (size_t i = 0; i < JobBoard::kMaxJobs; ++i) {
    const std::string name = absl::StrCat("a", i);
    ASSERT_TRUE(Submit(SubmitOf(name)).ok()) << i;
    ASSERT_TRUE(Update(Get(name), v1::DESIRED_CANCEL).ok());
  }
  EXPECT_EQ(Submit(SubmitOf("b")).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Take(board_.Remove(RemoveOf("a7"))).ok());
  EXPECT_TRUE(Submit(SubmitOf("b")).ok());
}

TEST_F(JobBoardTest, LimitsTheBytesOfConfigurations) {
  const std::string config(kMaxJobConfigBytes, 'x');
  size_t jobs = 0;
  while (Submit(SubmitOf(absl::StrCat("a", jobs), config)).ok()) ++jobs;
  EXPECT_EQ(jobs, JobBoard::kMaxTextBytes / kMaxJobConfigBytes);
  EXPECT_LT(board_.List(ListOf()).ByteSizeLong(), size_t{16} << 20);
}

// One row of the table of desires: a job in a phase, with or without a driver.
struct DesireCase {
  v1::JobPhase phase;
  bool driven;
  v1::Desired desired;
  v1::JobPhase after;
};

TEST_F(JobBoardTest, DesiresMoveJobsWithoutDriver) {
  const DesireCase cases[] = {
      {v1::JOB_PHASE_QUEUED, false, v1::DESIRED_PAUSE, v1::JOB_PHASE_PAUSED},
      {v1::JOB_PHASE_QUEUED, false, v1::DESIRED_CANCEL, v1::JOB_PHASE_CANCELLED},
      {v1::JOB_PHASE_PAUSED, false, v1::DESIRED_RUN, v1::JOB_PHASE_QUEUED},
      {v1::JOB_PHASE_PAUSED, false, v1::DESIRED_CANCEL, v1::JOB_PHASE_CANCELLED},
      {v1::JOB_PHASE_RUNNING, false, v1::DESIRED_PAUSE, v1::JOB_PHASE_PAUSED},
      {v1::JOB_PHASE_RUNNING, false, v1::DESIRED_CANCEL, v1::JOB_PHASE_CANCELLED},
      {v1::JOB_PHASE_STARTING, true, v1::DESIRED_PAUSE, v1::JOB_PHASE_STARTING},
      {v1::JOB_PHASE_RUNNING, true, v1::DESIRED_PAUSE, v1::JOB_PHASE_RUNNING},
      {v1::JOB_PHASE_RUNNING, true, v1::DESIRED_CANCEL, v1::JOB_PHASE_RUNNING},
  };
  int number = 0;
  for (const DesireCase& c : cases) {
    const std::string name = absl::StrCat("job-", number++);
    SCOPED_TRACE(name);
    if (c.phase == v1::JOB_PHASE_QUEUED || c.phase == v1::JOB_PHASE_PAUSED) {
      v1::SubmitJobRequest request = SubmitOf(name);
      if (c.phase == v1::JOB_PHASE_PAUSED) request.set_desired(v1::DESIRED_PAUSE);
      ASSERT_TRUE(Submit(request).ok());
    } else {
      Driven(name, c.phase);
      if (!c.driven) Wait(JobBoard::kLeaseMs);
    }
    const v1::Job before = Get(name);
    ASSERT_EQ(before.phase(), c.phase);
    const auto after = Update(before, c.desired);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->phase(), c.after);
    EXPECT_EQ(after->desired(), c.desired);
    EXPECT_EQ(after->generation(), before.generation() + 1);
    EXPECT_EQ(after->result().exit_code(), c.after == v1::JOB_PHASE_CANCELLED ? 76u : 0u);
    // The same request again has its effect already.
    const uint64_t revision_before = revision();
    EXPECT_TRUE(Update(before, c.desired).ok());
    EXPECT_EQ(revision(), revision_before);
  }
}

TEST_F(JobBoardTest, ComparesTheGenerationBeforeAChange) {
  const v1::Job old = *Submit(SubmitOf("a"));
  const v1::Job paused = *Update(old, v1::DESIRED_PAUSE);
  const absl::Status status = Update(old, v1::DESIRED_RUN).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(absl::StrContains(status.message(), "generation 2")) << status;
  EXPECT_TRUE(Update(paused, v1::DESIRED_RUN).ok());
  v1::Job unknown;
  unknown.set_name("b");
  EXPECT_EQ(Update(unknown, v1::DESIRED_RUN).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Update(old, v1::DESIRED_UNSPECIFIED).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(JobBoardTest, ACancelIsForEver) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  const v1::Job cancelled = *Update(job, v1::DESIRED_CANCEL);
  for (const v1::Desired desired : {v1::DESIRED_RUN, v1::DESIRED_PAUSE}) {
    EXPECT_EQ(Update(cancelled, desired).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(Report(ReportOf(cancelled))->desired(), v1::DESIRED_CANCEL);
  v1::ReportJobRequest end = ReportOf(cancelled, v1::JOB_PHASE_CANCELLED);
  end.set_ended(true);
  const auto ended = Report(end);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->result().exit_code(), 76u);
  EXPECT_TRUE(ended->driver().driver_nonce().empty());
  EXPECT_TRUE(Update(*ended, v1::DESIRED_CANCEL).ok());
}

TEST_F(JobBoardTest, SomeFailedJobsRunAgain) {
  int number = 0;
  for (const uint32_t code : {1, 64, 65, 66, 69, 70, 71, 74, 75, 76, 77, 130, 143}) {
    const bool again = code == 69 || code == 70 || code == 74 || code == 75 || code == 143;
    const std::string name = absl::StrCat("job-", number++);
    const v1::Job failed = *Report(EndOf(Driven(name, v1::JOB_PHASE_RUNNING), code));
    EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
    const auto resumed = Update(failed, v1::DESIRED_RUN);
    EXPECT_EQ(resumed.ok(), again) << code;
    if (again) {
      EXPECT_EQ(resumed->phase(), v1::JOB_PHASE_QUEUED);
      EXPECT_FALSE(resumed->has_result());
      EXPECT_TRUE(Update(failed, v1::DESIRED_RUN).ok()) << "the effect is there";
      EXPECT_GT(Claim(2, name)->driver().generation(), failed.driver().generation());
    } else {
      EXPECT_EQ(resumed.status().code(), absl::StatusCode::kFailedPrecondition);
    }
    EXPECT_EQ(Update(Get(name), v1::DESIRED_PAUSE).ok(), again) << code;
  }
}

TEST_F(JobBoardTest, GivesTheOldestWaitingJob) {
  for (const char* name : {"c", "a", "b"}) ASSERT_TRUE(Submit(SubmitOf(name)).ok());
  v1::SubmitJobRequest owned = SubmitOf("own");
  owned.set_owner("me");
  ASSERT_TRUE(Submit(owned).ok());
  ASSERT_TRUE(Update(Get("a"), v1::DESIRED_PAUSE).ok());
  EXPECT_EQ(Claim(1)->name(), "c");
  EXPECT_EQ(Claim(1)->name(), "c") << "the holder gets its own job again";
  EXPECT_EQ(Claim(2)->name(), "b");
  EXPECT_EQ(Claim(3).status().code(), absl::StatusCode::kNotFound);
  v1::ClaimJobRequest mine = ClaimOf(3);
  mine.set_owner("me");
  EXPECT_EQ(Take(board_.Claim(mine))->name(), "own");
}

TEST_F(JobBoardTest, RefusesClaimsThatCannotBe) {
  const v1::Job held = Driven("held", v1::JOB_PHASE_RUNNING);
  const absl::Status other = Claim(2, "held").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(other.message(), "host-1")) << other;
  EXPECT_EQ(Claim(2, "none").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Report(EndOf(held, 0)).ok());
  EXPECT_EQ(Claim(2, "held").status().code(), absl::StatusCode::kFailedPrecondition);
  v1::SubmitJobRequest paused = SubmitOf("paused");
  paused.set_desired(v1::DESIRED_PAUSE);
  ASSERT_TRUE(Submit(paused).ok());
  EXPECT_EQ(Claim(2, "paused").status().code(), absl::StatusCode::kUnavailable);
  v1::ClaimJobRequest bad = ClaimOf(2);
  bad.set_driver_nonce("xyz");
  EXPECT_EQ(board_.Claim(bad).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(JobBoardTest, ALeaseEndsAfterSilence) {
  v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  Wait(JobBoard::kLeaseMs - 1);
  EXPECT_EQ(Claim(2, "a").status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Report(ReportOf(job)).ok());
  Wait(JobBoard::kLeaseMs - 1);
  EXPECT_FALSE(Get("a").driver().driver_nonce().empty()) << "the report renewed it";
  Wait(1);
  EXPECT_TRUE(Get("a").driver().driver_nonce().empty());
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_TRUE(absl::StrContains(Get("a").reason(), "was not heard from for 30 s"));
  EXPECT_EQ(Report(ReportOf(job)).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Report(EndOf(job, 0)).status().code(), absl::StatusCode::kAborted);
  const auto next = Claim(2, "a");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GT(next->driver().generation(), job.driver().generation());
  EXPECT_TRUE(next->reason().empty());
  EXPECT_EQ(Report(ReportOf(job)).status().code(), absl::StatusCode::kAborted);
}

TEST_F(JobBoardTest, ADriverComesBackToItsLease) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  ASSERT_TRUE(Submit(SubmitOf("b")).ok());
  Wait(JobBoard::kLeaseMs);
  const auto back = Claim(1);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->name(), "a");
  EXPECT_EQ(back->driver().generation(), job.driver().generation());
  EXPECT_EQ(back->phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_TRUE(Report(ReportOf(job)).ok()) << "it is the same lease";
}

TEST_F(JobBoardTest, RestartsGiveLeasesInFull) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  BoardRecord record;
  record.job = job;
  record.last_driver = job.driver().driver_nonce();
  now_ = 50;  // another process, another clock
  board_ = JobBoard({kBoard, 9}, {record}, now_);
  Wait(JobBoard::kLeaseMs - 1);
  EXPECT_TRUE(Report(ReportOf(job)).ok());
  EXPECT_EQ(Claim(2, "a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(board_.CheckWatch(kBoard, 9).ok());
  EXPECT_EQ(board_.CheckWatch(kBoard, 8).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(JobBoardTest, EndedReportsGiveTheLeaseBack) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  v1::ReportJobRequest stop = ReportOf(job);
  stop.set_ended(true);
  ASSERT_TRUE(Report(stop).ok());
  EXPECT_TRUE(Report(stop).ok()) << "a repeat";
  EXPECT_TRUE(Get("a").driver().driver_nonce().empty());
  EXPECT_GT(Claim(1, "a")->driver().generation(), job.driver().generation()) << "another lease";
  EXPECT_EQ(Report(stop).status().code(), absl::StatusCode::kAborted);
  const v1::ReportJobRequest end = EndOf(Get("a"), 0);
  ASSERT_TRUE(Report(end).ok());
  const uint64_t before = revision();
  EXPECT_TRUE(Report(end).ok()) << "a repeat";
  EXPECT_EQ(revision(), before);
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_SUCCEEDED);
}

TEST_F(JobBoardTest, RefusesReportsThatContradictThemselves) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  v1::ReportJobRequest success = EndOf(job, 0);
  success.mutable_result()->set_exit_code(1);
  v1::ReportJobRequest failure = ReportOf(job, v1::JOB_PHASE_FAILED);
  v1::ReportJobRequest early = ReportOf(job, v1::JOB_PHASE_RUNNING);
  early.mutable_result()->set_exit_code(1);
  for (const v1::ReportJobRequest& bad :
       {success, failure, early, ReportOf(job, v1::JOB_PHASE_QUEUED),
        ReportOf(job, v1::JOB_PHASE_CANCELLED)}) {
    EXPECT_EQ(Report(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad.DebugString();
  }
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_RUNNING);
}

TEST_F(JobBoardTest, OnlyLastingChangesMoveTheRevision) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  const uint64_t before = revision();
  v1::ReportJobRequest report = ReportOf(job, v1::JOB_PHASE_RUNNING);
  report.mutable_progress()->set_step(5);
  ASSERT_TRUE(Report(report).ok());
  EXPECT_EQ(revision(), before);
  const auto moved = board_.TakeProgress();
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0]->job().progress().step(), 5u);
  EXPECT_EQ(moved[0]->revision(), before);
  EXPECT_TRUE(board_.TakeProgress().empty());
  report.mutable_progress()->set_checkpoint_step(5);
  report.mutable_progress()->set_checkpoint("/out/5");
  ASSERT_TRUE(Report(report).ok());
  EXPECT_EQ(revision(), before + 1);
  report.set_job_id(0xabc);
  ASSERT_TRUE(Report(report).ok());
  EXPECT_EQ(revision(), before + 2);
  ASSERT_TRUE(Report(report).ok());
  EXPECT_EQ(revision(), before + 2) << "a repeat";
}

TEST_F(JobBoardTest, TheCheckpointNeverMovesBack) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  v1::ReportJobRequest report = ReportOf(job);
  const auto checkpoint = [&](uint64_t step) {
    report.mutable_progress()->set_checkpoint_step(step);
    report.mutable_progress()->set_checkpoint(step == 0 ? "" : absl::StrCat("/out/", step));
    return Report(report)->progress().checkpoint();
  };
  EXPECT_EQ(checkpoint(20), "/out/20");
  for (const uint64_t late_or_none : {10, 0}) EXPECT_EQ(checkpoint(late_or_none), "/out/20");
  Wait(JobBoard::kLeaseMs);
  report = ReportOf(*Claim(2, "a"));
  EXPECT_EQ(checkpoint(10), "/out/10") << "the next driver went on from an earlier step";
}

TEST_F(JobBoardTest, RunningJobsAreAskedForCheckpoints) {
  const auto ask = [&] { return Take(board_.Checkpoint(CheckpointOf("a"))); };
  EXPECT_EQ(ask().status().code(), absl::StatusCode::kNotFound);
  v1::Job job = Driven("a", v1::JOB_PHASE_STARTING);
  EXPECT_EQ(ask().status().code(), absl::StatusCode::kFailedPrecondition);
  v1::ReportJobRequest report = ReportOf(job, v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(Report(report).ok() ? ask()->checkpoint_wanted() : 0, 1u) << "of unknown steps";
  report.mutable_progress()->set_step(4);
  report.mutable_progress()->set_steps(6);
  ASSERT_TRUE(Report(report).ok());
  EXPECT_EQ(ask()->checkpoint_wanted(), 5u);
  EXPECT_EQ(ask()->revision(), 5u) << "a repeat changes nothing";
  report.mutable_progress()->set_step(6);
  ASSERT_TRUE(Report(report).ok());
  EXPECT_EQ(ask()->checkpoint_wanted(), 6u) << "there is no later one";
  ASSERT_TRUE(Report(EndOf(Get("a"), 0)).ok());
  EXPECT_EQ(ask().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobBoardTest, RemovesEndedJobsOnly) {
  const v1::Job job = Driven("a", v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(board_.Remove(RemoveOf("a")).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Report(EndOf(job, 0)).ok());
  ASSERT_TRUE(Take(board_.Remove(RemoveOf("a"))).ok());
  const uint64_t before = revision();
  EXPECT_TRUE(Take(board_.Remove(RemoveOf("a"))).ok());
  EXPECT_EQ(revision(), before);
  const JobBoard::Event event = board_.NextEvent(before - 1);
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->kind(), v1::JobEvent::KIND_REMOVED);
  EXPECT_EQ(event->job().uid(), job.uid());
  EXPECT_NE(Submit(SubmitOf("a"))->uid(), job.uid());
}

TEST_F(JobBoardTest, ServersMayLeaveEndedJobs) {
  const auto left = [&] {
    std::map<uint64_t, bool> jobs;  // whether the state stays, by id
    for (const v1::LeftJob& job : board_.LeftJobs()) jobs[job.job_id()] = job.keep_state();
    return jobs;
  };
  const std::map<std::string, uint64_t> ids = {{"done", 1}, {"failed", 2}, {"lost", 3}, {"on", 4}};
  for (const auto& [name, id] : ids) {
    ASSERT_TRUE(Report(WithId(ReportOf(Driven(name, v1::JOB_PHASE_STARTING)), id)).ok());
  }
  ASSERT_TRUE(Report(EndOf(Driven("not-created", v1::JOB_PHASE_STARTING), 64)).ok());
  EXPECT_TRUE(left().empty());
  ASSERT_TRUE(Report(EndOf(Get("done"), 0)).ok());
  ASSERT_TRUE(Report(EndOf(Get("failed"), 64)).ok());
  ASSERT_TRUE(Report(EndOf(Get("lost"), 69)).ok());
  EXPECT_EQ(left(), (std::map<uint64_t, bool>{{1, false}, {2, false}, {3, true}}));
  ASSERT_TRUE(Update(Get("lost"), v1::DESIRED_RUN).ok());
  ASSERT_TRUE(Take(board_.Remove(RemoveOf("done"))).ok());
  EXPECT_EQ(left(), (std::map<uint64_t, bool>{{1, false}, {2, false}})) << "lost runs again";
  // The same job under the same name is no job that was removed.
  ASSERT_TRUE(Report(WithId(ReportOf(Driven("done", v1::JOB_PHASE_STARTING)), 1)).ok());
  EXPECT_EQ(left(), (std::map<uint64_t, bool>{{2, false}}));
  ASSERT_TRUE(Report(WithId(ReportOf(Driven("equal", v1::JOB_PHASE_STARTING)), 2)).ok());
  EXPECT_TRUE(left().empty()) << "a job like \"failed\" is in work";
}

TEST_F(JobBoardTest, ForgetsJobsRemovedLongAgo) {
  for (uint64_t id = 1; id <= JobBoard::kMaxRemoved + 1; ++id) {
    ASSERT_TRUE(Report(WithId(EndOf(Driven("a", v1::JOB_PHASE_STARTING), 0), id)).ok());
    ASSERT_TRUE(Take(board_.Remove(RemoveOf("a"))).ok());
  }
  EXPECT_EQ(board_.LeftJobs().size(), JobBoard::kMaxRemoved);
  EXPECT_EQ(board_.LeftJobs().front().job_id(), 2u);
}

TEST_F(JobBoardTest, KeepsTheLastEvents) {
  v1::Job job = *Submit(SubmitOf("a"));
  for (size_t i = 0; i < JobBoard::kMaxEvents + 5; ++i) {
    job = *Update(job, i % 2 == 0 ? v1::DESIRED_PAUSE : v1::DESIRED_RUN);
  }
  const uint64_t oldest = revision() - JobBoard::kMaxEvents;
  EXPECT_TRUE(board_.CheckWatch(kBoard, oldest).ok());
  EXPECT_EQ(board_.CheckWatch(kBoard, oldest - 1).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(board_.CheckWatch(kBoard, revision() + 1).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(board_.CheckWatch(kBoard + 1, revision()).code(), absl::StatusCode::kOutOfRange);
  for (uint64_t r = oldest; r < revision(); ++r) {
    ASSERT_NE(board_.NextEvent(r), nullptr);
    ASSERT_EQ(board_.NextEvent(r)->revision(), r + 1);
  }
  EXPECT_EQ(board_.NextEvent(revision()), nullptr);
}

TEST_F(JobBoardTest, KeepsFewerEventsIfTheyAreLarge) {
  v1::Job job = *Submit(SubmitOf("a", std::string(kMaxJobConfigBytes, 'x')));
  for (int i = 0; i < 600; ++i) {
    job = *Update(job, i % 2 == 0 ? v1::DESIRED_PAUSE : v1::DESIRED_RUN);
  }
  size_t kept = 0;
  while (board_.NextEvent(revision() - kept - 1) != nullptr) ++kept;
  EXPECT_LE(kept, JobBoard::kMaxEventBytes / kMaxJobConfigBytes);
  EXPECT_GT(kept, JobBoard::kMaxEventBytes / kMaxJobConfigBytes - 3);
}

}  // namespace
}  // namespace eps
